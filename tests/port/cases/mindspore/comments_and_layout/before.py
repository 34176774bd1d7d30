#!/usr/bin/env python
# A header that stays.
import torch  # the framework

import torch.nn as nn


block = nn.Sequential(
    # first
    nn.Conv2d(
        3,
        8,
        kernel_size=3,  # small
        device="cuda",
    ),

    nn.Conv2d(8, 8, 1, 2,
              bias=True),   # odd spacing
)
x = torch . cat( [ block ],dim = 1 )


def f ( a,b ):
    return  a @ b   # untouched
