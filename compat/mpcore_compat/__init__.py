"""Imitations of existing APIs, and hosts; importing a module imports its framework alone.

``torch_amp`` (GradScaler), ``apex`` (amp), ``keras`` (LossScaleOptimizer) and ``mindspore`` (amp).
``docs/shims.md`` says what is exact, and what ``safe=True`` changes. ``lightning``, ``accelerate``
and ``transformers`` let those libraries train under a policy: ``docs/hosts.md``.
"""
