"""Comparing backends: one experiment, several frameworks, one verdict.

The rooms, in the order data flows through them:

- ``experiment``: what is compared (data, loss, optimizer, one builder per framework)
- ``weights``: the neutral form of weights and their matching between frameworks
- ``driver``: what a backend provides so that an experiment can run in it
- ``worker``: the runs of one backend, in a process of its own
- ``runner``: starts the workers, shows progress, collects
- ``verdict``: do two runs agree, and by how much
- ``progress``: what is shown while runs go on
- ``report``: the table, ``report.json`` and ``report.html``; ``report_*`` are its parts
"""

from mpcore.compare.experiment import Data, Experiment, OptimizerSpec, load_experiment

__all__ = ["Data", "Experiment", "OptimizerSpec", "load_experiment"]
