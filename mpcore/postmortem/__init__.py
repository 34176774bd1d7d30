"""Why a step was skipped, shown on the step itself: see ``Amp.diagnose``."""

from mpcore.postmortem.record import PHASES, Constant, PostMortem, Trial
from mpcore.postmortem.run import post_mortem

__all__ = ["PHASES", "Constant", "PostMortem", "Trial", "post_mortem"]
