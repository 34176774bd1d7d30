"""A step looked at closely: summaries of every layer's tensors, forward and backward."""

from mpcore.tools.inspection.record import Inspection, LayerCall, Request
from mpcore.tools.inspection.run import inspect
from mpcore.tools.inspection.tensor_summary import (
    BUCKETS,
    SAMPLE,
    Difference,
    TensorSummary,
    difference,
    summarize,
)

__all__ = [
    "BUCKETS",
    "SAMPLE",
    "Difference",
    "Inspection",
    "LayerCall",
    "Request",
    "TensorSummary",
    "difference",
    "inspect",
    "summarize",
]
