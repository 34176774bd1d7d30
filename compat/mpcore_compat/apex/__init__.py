"""A home for scripts of ``apex.amp``, which NVIDIA/apex removed in May 2025.

``from mpcore_compat.apex import amp`` for ``from apex import amp``; the rest of the loop stays.
"""

from mpcore_compat.apex import amp

__all__ = ["amp"]
