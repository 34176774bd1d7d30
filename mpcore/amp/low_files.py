"""Tell who writes a framework's own file of a prepared model that the file has rounded values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpcore._lib.callers import warn_user

if TYPE_CHECKING:
    from collections.abc import Collection

    from mpcore.amp.amp import Amp

__all__ = ["tell_of_low_file"]


def tell_of_low_file(amp: Amp, writer: str, instead: str = "", *, hosts: Collection[str]) -> None:
    """Warn, once for ``amp``, that float32 values of parameters will not be in a file.

    Args:
        amp: the prepared model; nothing is told where its parameters are all that there is.
        writer: what writes the file: ``"`model.save_weights`"``.
        instead: another way out, of the framework.
        hosts: packages that write in the user's name: the framework's, a host's.
    """
    if amp.told_of_files or not (shapes := amp.kept_beside()):
        return
    amp.told_of_files = True
    came = " (their dtypes before `prepare`: `amp.widened`)" if amp.widened else ""
    msg = (
        f"{writer} gets 16-bit values of {len(shapes)} parameters{came}, a run that is resumed "
        "from them goes another way: their float32 values are in `amp.save(path, weights=True)`, "
        f"`amp.state_dict()` and `amp.weights()`{instead}"
    )
    warn_user(msg, *hosts)
