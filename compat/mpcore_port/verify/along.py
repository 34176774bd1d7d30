"""Port the modules beside a script along with it, for one run."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from mpcore_port.engine import port_tree
from mpcore_port.source import Source, Tree, Unread, read_source
from mpcore_port.verify.module import StepError

if TYPE_CHECKING:
    from pathlib import Path

    from mpcore_port.targets import Options, Target
    from mpcore_port.verify.beside import Beside

__all__ = ["port_along"]


def port_along(beside: Beside, copy: Path, target: Target, options: Options) -> tuple[str, ...]:
    """Write the modules beside a script, ported, into ``copy``; return which have changed.

    What says nothing of a device or of mixed precision is copied; for MindSpore all is ported.

    Raises:
        StepError: one of them cannot be ported.
    """
    touched = set(beside.files if target.name == "mindspore" else beside.touched())
    tree = Tree(beside.top)
    for path in beside.files:
        to = copy / path.relative_to(beside.top)
        to.parent.mkdir(parents=True, exist_ok=True)
        if path in touched:
            found = read_source(path, path.relative_to(beside.top).as_posix())
            if isinstance(found, Source):
                tree.sources.append(found)
                continue
        shutil.copyfile(path, to)
    done = port_tree(tree, target, options)
    bad: list[Unread] = list(done.unread)
    if bad:
        msg = f"{bad[0].path}, which it imports, cannot be ported: {bad[0].reason}"
        raise StepError(msg)
    for file in done.files:
        (copy / file.source.path).write_bytes(file.source.encode(file.text))
    return tuple(file.source.path for file in done.files if file.text != file.source.text)
