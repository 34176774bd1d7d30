"""A decoder-only transformer in tf.keras."""

import keras
from keras import layers, ops


class Block(layers.Layer):
    def __init__(self, width: int, heads: int, length: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.heads = heads
        self.norm1 = layers.LayerNormalization(epsilon=1e-5)
        self.qkv = layers.Dense(3 * width, use_bias=False)
        self.softmax = layers.Softmax()
        self.proj = layers.Dense(width)
        self.norm2 = layers.LayerNormalization(epsilon=1e-5)
        self.up = layers.Dense(4 * width)
        self.gelu = layers.Activation(lambda x: ops.gelu(x, approximate=False), name="gelu")
        self.down = layers.Dense(width)

    def build(self, shape) -> None:
        width = shape[-1]
        for layer in (self.norm1, self.qkv, self.proj, self.norm2, self.up):
            layer.build(shape)
        self.down.build((*shape[:-1], 4 * width))
        self.built = True

    def attend(self, x):
        _, length, width = x.shape
        each = width // self.heads
        qkv = ops.reshape(self.qkv(x), (-1, length, 3, self.heads, each))
        q, k, v = ops.unstack(ops.transpose(qkv, (2, 0, 3, 1, 4)), axis=0)
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * each**-0.5
        future = ops.triu(ops.full((length, length), -1e4, dtype="float32"), k=1)
        weights = ops.cast(self.softmax(ops.cast(scores, "float32") + future), v.dtype)
        mixed = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        return self.proj(ops.reshape(mixed, (-1, length, width)))

    def call(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(self.gelu(self.up(self.norm2(x))))


class Transformer(keras.Model):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        start = keras.initializers.RandomNormal(stddev=0.02)
        self.embed = layers.Embedding(vocabulary, width, embeddings_initializer=start)
        self.place = layers.Embedding(length, width, embeddings_initializer=start)
        self.blocks = [Block(width, heads, length, name=f"block{i}") for i in range(blocks)]
        self.norm = layers.LayerNormalization(epsilon=1e-5)
        self.head = layers.Dense(vocabulary)

    def call(self, tokens):
        x = self.embed(tokens) + self.place(ops.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
