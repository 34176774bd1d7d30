#!/usr/bin/env python
# A header that stays.
import mindspore as ms  # the framework
from mindspore import mint
from mindspore import nn


block = nn.SequentialCell(
    # first
    nn.Conv2d(
        3,
        8,
        kernel_size=3,  # small
        has_bias=True,
        pad_mode='pad',
    ),

    nn.Conv2d(8, 8, 1, stride=2,
              has_bias=True, pad_mode='pad'),   # odd spacing
).set_train()
x = mint.cat( [ block ],dim = 1 )


def f ( a,b ):
    return  a @ b   # untouched
