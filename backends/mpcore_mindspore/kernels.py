"""Kernels of MindSpore that move or make values and compute nothing; mindspore 2.10.0."""

from __future__ import annotations

from mpcore.tools.inspection.trace import words

__all__ = ["MOVES", "VIEWS"]

VIEWS = words(
    "Reshape Transpose TransposeExtView Squeeze ExpandDims Split Stack Unstack StridedSlice Slice "
    "Shape Depend Load TensorMove Assign Identity View BroadcastTo StopGradient Flatten "
    "TupleToTensor ScalarToTensor InsertGradientOf DType Zeros Ones GetitemTensorIndexInfo typeof"
)
MOVES = VIEWS | words(
    "Cast Concat Gather GatherD Fill FillV2 ZerosLike OnesLike Tile Select MaskedFill OneHot Pad "
    "PadV3 ReverseV2 ReverseSequence"
)
