import math

import mindspore as ms
import mpcore_port_runtime as port


def adjust(optimizer, epoch, base):
    lr = base * 0.5 * (1 + math.cos(math.pi * epoch / 10))
    for group in optimizer.param_groups:
        group["lr"] = lr
    print(optimizer.param_groups[0]["lr"])


def build(model):
    optimizer = port.AdamW(model.trainable_params(), lr=1e-3)
    return optimizer, port.CosineAnnealingLR(optimizer, T_max=10)
