"""Why a step was skipped, shown on the step itself: see ``Amp.diagnose``."""

from mpcore.tools.diagnosis.record import PHASES, Constant, PostMortem, Trial

__all__ = ["PHASES", "Constant", "PostMortem", "Trial"]
