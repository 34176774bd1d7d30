#!/usr/bin/env python
# first line of all
"""What it does."""
from __future__ import annotations
import os ; import torch   # two in a line

if torch.cuda.is_available( ) :   # odd    spacing
    x = torch.zeros( 3,device = 'cuda' , )  # trailing
else : x = None


def f(a ,b = "cuda:1") :
	return ( a.cuda( ) ,   # tab, and a bracket
	         b )
# last line