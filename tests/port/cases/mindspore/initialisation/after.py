import mindspore as ms
from mindspore.common.initializer import HeNormal
from mindspore.common.initializer import Constant
import mpcore_port_runtime as port
from mindspore.common.initializer import Normal
from mindspore import nn


def init_weights(m):
    if isinstance(m, nn.Dense):
        port.fill(m.weight, Normal(0.02, 0.0))
        if m.bias is not None:
            port.fill(m.bias, Constant(0.0))
    elif isinstance(m, (nn.Conv2d, nn.Conv2dTranspose)):
        port.fill(m.weight, HeNormal(0, "fan_out", "relu"))
