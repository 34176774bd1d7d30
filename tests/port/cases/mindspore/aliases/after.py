import mindspore as ms
import mpcore_port_runtime as port
from mindspore import nn
from mindspore import ops


def squash(x: ms.Tensor) -> ms.Tensor:
    """Keep it small."""
    y = ops.leaky_relu(x, alpha=0.01) + ops.softmax(x, axis=-1)
    return ops.stack([y, ops.zeros((2, 3))], axis=1).to(ms.float32)


net = nn.Dense(3, 3)
sgd = port.SGD(port.parameters(net), lr=0.1)
