"""A step looked at closely: sketches of every layer's tensors, forward and backward."""

from mpcore.tools.inspection.record import Inspection, LayerCall, Request
from mpcore.tools.inspection.run import inspect
from mpcore.tools.inspection.tensor_summary import (
    BUCKETS,
    SAMPLE,
    Difference,
    Sketch,
    difference,
    sketch,
)

__all__ = [
    "BUCKETS",
    "SAMPLE",
    "Difference",
    "Inspection",
    "LayerCall",
    "Request",
    "Sketch",
    "difference",
    "inspect",
    "sketch",
]
