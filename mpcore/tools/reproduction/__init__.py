"""One layer in which two sides part, as a script that needs neither mpcore nor the model."""

from mpcore.tools.reproduction.run import printed
from mpcore.tools.reproduction.side import Side, side_of
from mpcore.tools.reproduction.write import check_script, run_script, write_replay, write_script

__all__ = [
    "Side",
    "check_script",
    "printed",
    "run_script",
    "side_of",
    "write_replay",
    "write_script",
]
