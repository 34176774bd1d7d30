"""Follow a training run: records of steps, where they go, and advice drawn from them."""

from mpcore.tools.monitor.advice import Advice, advise
from mpcore.tools.monitor.monitor import Monitor
from mpcore.tools.monitor.sinks import JsonLines, Live, Memory, Sink, TensorBoard

__all__ = ["Advice", "JsonLines", "Live", "Memory", "Monitor", "Sink", "TensorBoard", "advise"]
