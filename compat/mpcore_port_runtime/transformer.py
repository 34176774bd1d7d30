"""Attention and transformers as torch has them: copies of any layer, torch's words, torch's starts.

Source: torch/nn/modules/transformer.py and activation.py of torch 2.13.0. MindSpore's encoders and
decoders take no more than the settings of the layer that they are given; torch copies the layer.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import mindspore as ms
from mindspore import nn, ops

from mpcore_port_runtime.attention import added_to_scores
from mpcore_port_runtime.inits import xavier_uniform_
from mpcore_port_runtime.layers import LayerNorm
from mpcore_port_runtime.modules import parameters

__all__ = [
    "MultiheadAttention",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "activation_named",
    "clones",
]


class MultiheadAttention(nn.MultiheadAttention):  # type: ignore[misc]  # nn.Cell is untyped
    """torch.nn.MultiheadAttention: two results always, and queries, keys and values by words."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            int(embed_dim),
            int(num_heads),
            dropout,
            bool(bias),
            bool(add_bias_kv),
            bool(add_zero_attn),
            kdim,
            vdim,
            bool(batch_first),
        )
        if bias:
            self.out_proj.bias.set_data(ops.zeros_like(self.out_proj.bias))

    def __call__(self, query: Any, key: Any, value: Any, *args: Any, **words: Any) -> Any:
        """Call it; MindSpore's own wants its first three by their places."""
        return super().__call__(query, key, value, *args, **words)

    def construct(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Any, Any]:
        """Return what is attended to, and by what weights, or None.

        Raises:
            RuntimeError: ``is_causal`` is said and no mask is given.
        """
        if is_causal and attn_mask is None:
            msg = "Need attn_mask if specifying the is_causal hint."
            raise RuntimeError(msg)
        padding, mask = _alike(key_padding_mask, attn_mask, query.dtype)
        words = (padding, need_weights, mask, average_attn_weights)
        found = super().construct(query, key, value, *words)
        return found[0], found[1] if need_weights else None


def _alike(padding: Any, mask: Any, dtype: Any) -> tuple[Any, Any]:
    """Return both masks of one kind: MindSpore's own adds a truth to scores as 1, not as -inf."""
    given = [one for one in (padding, mask) if one is not None]
    truths = all(one.dtype in _TRUTHS for one in given)
    return _as(padding, dtype, truths), _as(mask, dtype, truths)


def _as(mask: Any, dtype: Any, truths: bool) -> Any:
    if mask is None:
        return None
    return mask.astype(ms.bool_) if truths else added_to_scores(mask, dtype)


_TRUTHS = (ms.bool_, ms.uint8)


class _Layer(nn.Cell):  # type: ignore[misc]
    """What both kinds of layers have."""

    _norms = 2
    _attentions: tuple[str, ...] = ("self_attn",)

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        width = int(d_model)
        for name in self._attentions:
            made = MultiheadAttention(width, nhead, dropout, bias, batch_first=batch_first)
            setattr(self, name, made)
        self.linear1 = nn.Dense(width, int(dim_feedforward), has_bias=bool(bias))
        self.dropout = nn.Dropout(p=float(dropout))
        self.linear2 = nn.Dense(int(dim_feedforward), width, has_bias=bool(bias))
        self.norm_first = norm_first
        for place in range(1, self._norms + 1):
            setattr(self, f"norm{place}", _norm(width, layer_norm_eps, bias))
        for place in range(1, self._norms + 1):
            setattr(self, f"dropout{place}", nn.Dropout(p=float(dropout)))
        self.activation = activation_named(activation)

    def _sa_block(
        self, x: Any, attn_mask: Any, key_padding_mask: Any, is_causal: bool = False
    ) -> Any:
        """Return what ``x`` attends to in itself."""
        words = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask}
        found = self.self_attn(x, x, x, need_weights=False, is_causal=is_causal, **words)
        return self.dropout1(found[0])

    def _ff_block(self, x: Any) -> Any:
        """Return what is fed forward of ``x``."""
        x = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return getattr(self, f"dropout{self._norms}")(x)


class TransformerEncoderLayer(_Layer):
    """torch.nn.TransformerEncoderLayer."""

    def construct(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:
        """Return ``src`` with what it attends to in itself, fed forward."""
        x = src
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), src_mask, src_key_padding_mask, is_causal)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(x + self._sa_block(x, src_mask, src_key_padding_mask, is_causal))
        return self.norm2(x + self._ff_block(x))


class TransformerDecoderLayer(_Layer):
    """torch.nn.TransformerDecoderLayer."""

    _norms = 3
    _attentions = ("self_attn", "multihead_attn")

    def construct(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        """Return ``tgt`` with what it attends to in itself and in ``memory``, fed forward."""
        own = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        other = (memory_mask, memory_key_padding_mask, memory_is_causal)
        x = tgt
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), *own)
            x = x + self._mha_block(self.norm2(x), memory, *other)
            return x + self._ff_block(self.norm3(x))
        x = self.norm1(x + self._sa_block(x, *own))
        x = self.norm2(x + self._mha_block(x, memory, *other))
        return self.norm3(x + self._ff_block(x))

    def _mha_block(
        self, x: Any, mem: Any, attn_mask: Any, key_padding_mask: Any, is_causal: bool = False
    ) -> Any:
        """Return what ``x`` attends to in ``mem``."""
        words = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask}
        found = self.multihead_attn(x, mem, mem, need_weights=False, is_causal=is_causal, **words)
        return self.dropout2(found[0])


class TransformerEncoder(nn.Cell):  # type: ignore[misc]
    """torch.nn.TransformerEncoder: copies of one layer."""

    def __init__(
        self,
        encoder_layer: Any,
        num_layers: int,
        norm: Any = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = clones(encoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm
        self.enable_nested_tensor, self.mask_check = enable_nested_tensor, mask_check

    def construct(
        self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None
    ) -> Any:
        """Return what comes out of the last layer."""
        hint = _is_causal(mask, is_causal, src, self.layers)
        words = {"src_mask": mask, "is_causal": hint, "src_key_padding_mask": src_key_padding_mask}
        for layer in self.layers:
            src = layer(src, **_taken(layer, words, ("is_causal",)))
        return src if self.norm is None else self.norm(src)


_HINTS = ("tgt_is_causal", "memory_is_causal")
"""What the forward of a decoder, or of its layers, may not know."""


class TransformerDecoder(nn.Cell):  # type: ignore[misc]
    """torch.nn.TransformerDecoder: copies of one layer."""

    def __init__(self, decoder_layer: Any, num_layers: int, norm: Any = None) -> None:
        super().__init__()
        self.layers = clones(decoder_layer, num_layers)
        self.num_layers, self.norm = num_layers, norm

    def construct(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: Any = None,
        memory_is_causal: bool = False,
    ) -> Any:
        """Return what comes out of the last layer."""
        words = {
            "tgt_mask": tgt_mask,
            "memory_mask": memory_mask,
            "tgt_key_padding_mask": tgt_key_padding_mask,
            "memory_key_padding_mask": memory_key_padding_mask,
            "tgt_is_causal": _is_causal(tgt_mask, tgt_is_causal, tgt, self.layers),
            "memory_is_causal": memory_is_causal,
        }
        for layer in self.layers:
            tgt = layer(tgt, memory, **_taken(layer, words, _HINTS))
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(nn.Cell):  # type: ignore[misc]
    """torch.nn.Transformer: an encoder and a decoder."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        sizes = (d_model, nhead, dim_feedforward, dropout, activation)
        given = (*sizes, layer_norm_eps, batch_first, norm_first, bias)
        self.encoder = custom_encoder
        if custom_encoder is None:
            norm = _norm(d_model, layer_norm_eps, bias)
            layer = TransformerEncoderLayer(*given)
            self.encoder = TransformerEncoder(layer, num_encoder_layers, norm)
        self.decoder = custom_decoder
        if custom_decoder is None:
            norm = _norm(d_model, layer_norm_eps, bias)
            other = TransformerDecoderLayer(*given)
            self.decoder = TransformerDecoder(other, num_decoder_layers, norm)
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def construct(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: Any = None,
        tgt_is_causal: Any = None,
        memory_is_causal: bool = False,
    ) -> Any:
        """Return what the decoder makes of ``tgt`` and of what the encoder makes of ``src``."""
        of_source = {"mask": src_mask, "src_key_padding_mask": src_key_padding_mask}
        memory = self.encoder(
            src, **_taken(self.encoder, of_source | {"is_causal": src_is_causal}, ("is_causal",))
        )
        words = {
            "tgt_mask": tgt_mask,
            "memory_mask": memory_mask,
            "tgt_key_padding_mask": tgt_key_padding_mask,
            "memory_key_padding_mask": memory_key_padding_mask,
            "tgt_is_causal": tgt_is_causal,
            "memory_is_causal": memory_is_causal,
        }
        return self.decoder(tgt, memory, **_taken(self.decoder, words, _HINTS))

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Any:
        """Return what is added to scores: -inf above the diagonal, 0 elsewhere."""
        return _causal(sz).astype(dtype or ms.float32)

    def _reset_parameters(self) -> None:
        """Start what has more than one axis anew."""
        for param in parameters(self):
            if param.ndim > 1:
                xavier_uniform_(param)


def _causal(size: int) -> Any:
    return ops.full((size, size), float("-inf"), dtype=ms.float32).triu(diagonal=1)


def _is_causal(mask: Any, said: Any, source: Any, layers: Any) -> bool:
    """Return what layers are told of a mask; torch looks whether it is causal."""
    if said is not None or mask is None:
        return bool(said)
    attention = getattr(layers[0], "self_attn", None)
    first = 1 if getattr(attention, "batch_first", False) else 0
    size = source.shape[first if source.ndim == 3 else 0]
    if tuple(mask.shape) != (size, size):
        return False
    return bool((mask == _causal(size).astype(mask.dtype)).all())


def _taken(layer: Any, words: dict[str, Any], hints: tuple[str, ...]) -> dict[str, Any]:
    """Return the words for a layer; hints that its forward does not know are older torch's."""
    known = inspect.signature(layer.construct).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in known):
        return words
    names = {one.name for one in known}
    return {name: one for name, one in words.items() if name not in hints or name in names}


def clones(module: Any, N: int) -> Any:  # noqa: N803  # torch's name
    """Return a list of copies of a layer, with its weights."""
    return nn.CellList([copy.deepcopy(module) for _ in range(N)])


def _norm(width: int, eps: float, bias: bool) -> Any:
    if bias:
        return nn.LayerNorm((int(width),), epsilon=float(eps))
    return LayerNorm(int(width), float(eps), bias=False)


def activation_named(activation: Any) -> Any:
    """Return the function that "relu" or "gelu" names; a function as it is."""
    if not isinstance(activation, str):
        return activation
    if activation not in ("relu", "gelu"):
        msg = f"activation should be relu/gelu, not {activation}"
        raise RuntimeError(msg)
    return ops.relu if activation == "relu" else ops.gelu
