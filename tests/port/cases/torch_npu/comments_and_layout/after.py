#!/usr/bin/env python
# first line of all
"""What it does."""
from __future__ import annotations
import os ; import torch   # two in a line
import torch_npu

if torch.npu.is_available( ) :   # odd    spacing
    x = torch.zeros( 3,device = 'npu' , )  # trailing
else : x = None


def f(a ,b = "npu:1") :
	return ( a.npu( ) ,   # tab, and a bracket
	         b )
# last line