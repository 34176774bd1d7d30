"""How an overflow is noticed: by the values, or by a status register of the device.

Most devices follow IEEE 754: an overflow becomes inf, an invalid operation NaN, and both travel
into the gradients, where a look at the values finds them. Some Ascend devices *saturate*: inf
becomes the largest number of the format and NaN becomes 0, so no tensor ever shows it; a sticky
status register on the device does.

Source: CANN's ``aclrtFloatOverflowMode``: Atlas training products of the 910A class only
saturate, A2 and A3 default to inf and NaN, the 950 has nothing else. None of them was at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpcore.errors import check_choice
from mpcore.numerics.dtypes import FORMATS

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["OverflowDetector", "find_detector", "saturate"]


class OverflowDetector:
    """The contract; as it stands, the detector of devices whose values show an overflow.

    One step calls ``begin``, runs forward and backward of all its micro-batches, then calls
    ``read``, ``reduce`` and ``clear``, each once, whatever the number of optimizers. The values
    of the unscaled gradients are tested in any case: a register says more, never less.

    A detector of a framework that compiles is written in that framework's own operations.

    Attributes:
        kind: ``"values"`` or ``"status_register"``; ``begin``, ``read`` and ``clear`` are called
            for a register only.
        mode: ``"infnan"`` or ``"saturation"``: what the device makes of an overflow.
        localises: whether it can say which optimizer's gradients overflowed. A register is one
            for the whole device.
    """

    kind = "values"
    mode = "infnan"
    localises = True

    def begin(self) -> Any:
        """Clear what earlier work left: initialisation, evaluation, a step that was given up.

        Before the forward pass, so that its saturation counts, and once per step, not per
        micro-batch.
        """

    def read(self, grads: Any) -> Any:
        """Return a 0-d bool: no overflow since ``begin``; None where only values tell.

        Args:
            grads: every gradient of the scaled loss; a register is read after they all exist.
        """

    def reduce(self, each: tuple[Any, ...], unflagged: Any) -> tuple[Any, ...]:
        """Return the verdicts that all ranks agree on.

        Args:
            each: for each optimizer, whether all its gradients are finite on this rank.
            unflagged: what ``read`` gave: no overflow flag was raised.
        """
        return each  # a graph compiler reads this: no `del` of what is not used

    def clear(self) -> Any:
        """Clear the register, after ``reduce``: a collective may overflow itself."""


def find_detector(asked: Any, kinds: dict[str, OverflowDetector], auto: str) -> OverflowDetector:
    """Return the detector that ``mpcore.prepare(detector=asked)`` means.

    Args:
        asked: ``"auto"``, ``"values"``, ``"status_register"`` or an OverflowDetector.
        kinds: the detectors of this device by name.
        auto: the name that ``"auto"`` stands for here.

    Raises:
        PolicyError: the device has no such detector.
    """
    if isinstance(asked, OverflowDetector):
        return asked
    name = check_choice("detector", asked, ("auto", *kinds))
    return kinds[auto if name == "auto" else name]


def saturate(values: npt.ArrayLike, dtype: str) -> tuple[npt.NDArray[np.float32], bool]:
    """Return what a saturating device stores instead of ``values``, and whether it had to.

    Beyond the range of ``dtype`` the largest number of that sign is stored, instead of NaN 0.

    Args:
        values: any shape.
        dtype: ``"float16"``, ``"bfloat16"`` or ``"float32"``.

    Examples:
        >>> values, overflowed = saturate([1.0, 7e4, float("-inf"), float("nan")], "float16")
        >>> values.tolist(), overflowed
        ([1.0, 65504.0, -65504.0, 0.0], True)
    """
    array = np.asarray(values, np.float32)
    top = np.float32(FORMATS[dtype].max)
    kept = np.clip(np.where(np.isnan(array), np.float32(0), array), -top, top)
    return kept, bool(np.any(kept != array))
