"""Why a step was skipped, shown on the step itself: see ``Amp.diagnose``."""

from mpcore.tools.diagnosis.record import PHASES, Constant, PostMortem, Trial
from mpcore.tools.diagnosis.run import post_mortem

__all__ = ["PHASES", "Constant", "PostMortem", "Trial", "post_mortem"]
