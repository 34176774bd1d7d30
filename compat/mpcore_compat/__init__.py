"""Imitations of existing APIs, one module each; importing one imports its framework alone.

``torch_amp`` (GradScaler), ``apex`` (amp), ``keras`` (LossScaleOptimizer) and ``mindspore`` (amp).
``docs/shims.md`` says what is exact, and what ``safe=True`` changes.
"""
