"""Experiments: what is run, in which configurations, and how it is shown."""

from mpcore.backend.driver import OptimizerSpec
from mpcore.tools.experiment.data import Data
from mpcore.tools.experiment.experiment import Experiment, load_experiment

__all__ = ["Data", "Experiment", "OptimizerSpec", "load_experiment"]
