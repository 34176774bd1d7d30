"""The tuned policy as a file: a plain policy whose comments are the evidence."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from mpcore.policy.policy import Policy
from mpcore.tools.tune.words import lines

if TYPE_CHECKING:
    from mpcore.tools.tune.evidence import Evidence, Point

__all__ = ["HEAD", "document"]

HEAD = "# tuned by mpcore tune"
"""First words of each file, by which an earlier one is known."""


def document(found: Evidence) -> str:
    """Return the file's text."""
    about = found.last("about")
    comments = [f"{HEAD}: {about['experiment']}, {about['backend']}; {found.level}"]
    for line in lines(found):
        comments += textwrap.wrap(
            line, 98, initial_indent="# ", subsequent_indent="#           ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    comments += ["#", "# what was tried (time over float32's, error over the noise of batches):"]
    comments += [f"#   {_row(point)}" for point in found.points()]
    refused = {**found.last("named").get("refused", {})}
    refused |= {e["policy"]: e["why"] for e in found.of("refused")}
    comments += [f"# refused: {name}: {why}"[:300] for name, why in refused.items()]
    return "\n".join(comments) + "\n\n" + Policy.parse(found.policy).to_toml()


def _row(point: Point) -> str:
    time = "   -" if point.time is None else f"{point.time:4.2f}"
    spread = "" if point.low is None else f" ({point.low:.2f} to {point.high:.2f})"
    rho = "     -" if point.rho is None else f"{point.rho:6.2g}"
    return f"{time} {rho}  {point.level:<9} {point.policy}{spread}"
