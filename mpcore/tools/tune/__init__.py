"""The fastest policy that trains as well, found by measuring: ``mpcore tune`` and ``mp.tune``."""
