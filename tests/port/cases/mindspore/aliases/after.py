import mindspore as ms
from mindspore.experimental import optim
from mindspore import nn
from mindspore import ops
import mpcore_port_runtime as port


def squash(x: ms.Tensor) -> ms.Tensor:
    """Keep it small."""
    y = port.leaky_relu(x) + ops.softmax(x, axis=-1)
    return ops.stack([y, ops.zeros((2, 3))], axis=1).to(ms.float32)


net = nn.Dense(3, 3)
sgd = optim.SGD(net.trainable_params(), lr=0.1)
