"""That each module which a backend names as a part is that part: read by mypy, never run."""

from typing import Any, TypeAlias

import mpcore_jax.differences
import mpcore_mindspore.differences
import mpcore_mindspore.dry_run
import mpcore_mindspore.graph
import mpcore_mindspore.listener
import mpcore_mindspore.modes
import mpcore_mindspore.moves
import mpcore_mindspore.probe
import mpcore_mindspore.profile
import mpcore_mindspore.rebuild
import mpcore_mindspore.recorder
import mpcore_numpy.probe
import mpcore_tensorflow.differences
import mpcore_tensorflow.dry_run
import mpcore_tensorflow.graph
import mpcore_tensorflow.listener
import mpcore_tensorflow.modes
import mpcore_tensorflow.moves
import mpcore_tensorflow.probe
import mpcore_tensorflow.profile
import mpcore_tensorflow.rebuild
import mpcore_tensorflow.recorder
import mpcore_torch.dry_run
import mpcore_torch.exact
import mpcore_torch.foreteller
import mpcore_torch.graph
import mpcore_torch.listener
import mpcore_torch.modes
import mpcore_torch.moves
import mpcore_torch.probe
import mpcore_torch.profile
import mpcore_torch.rebuild
import mpcore_torch.recorder
from mpcore.backend.differences import Differences
from mpcore.backend.exact import Exact
from mpcore.backend.foreteller import Foreteller
from mpcore.backend.listener import Listener
from mpcore.backend.modes import Modes
from mpcore.backend.moves import Moves
from mpcore.backend.probe import Probe
from mpcore.backend.profiler import Profiler
from mpcore.backend.rebuild import Rebuild
from mpcore.graph.part import GraphPart
from mpcore.tools.inspection.observe import DryRun
from mpcore.tools.inspection.recorder import Recorder

torch: tuple[
    Modes[Any],
    Moves,
    GraphPart,
    Exact,
    Profiler,
    Probe,
    Listener,
    Rebuild,
    Recorder,
    Foreteller,
    DryRun,
] = (
    mpcore_torch.modes,
    mpcore_torch.moves,
    mpcore_torch.graph,
    mpcore_torch.exact,
    mpcore_torch.profile,
    mpcore_torch.probe,
    mpcore_torch.listener,
    mpcore_torch.rebuild,
    mpcore_torch.recorder,
    mpcore_torch.foreteller,
    mpcore_torch.dry_run,
)
_Parts: TypeAlias = tuple[
    Modes[Any],
    Moves,
    GraphPart,
    Profiler,
    Probe,
    Differences,
    Listener,
    Rebuild,
    Recorder,
    Foreteller,
    DryRun,
]

tensorflow: _Parts = (
    mpcore_tensorflow.modes,
    mpcore_tensorflow.moves,
    mpcore_tensorflow.graph,
    mpcore_tensorflow.profile,
    mpcore_tensorflow.probe,
    mpcore_tensorflow.differences,
    mpcore_tensorflow.listener,
    mpcore_tensorflow.rebuild,
    mpcore_tensorflow.recorder,
    mpcore_tensorflow.dry_run,
    mpcore_tensorflow.dry_run,
)
mindspore: _Parts = (
    mpcore_mindspore.modes,
    mpcore_mindspore.moves,
    mpcore_mindspore.graph,
    mpcore_mindspore.profile,
    mpcore_mindspore.probe,
    mpcore_mindspore.differences,
    mpcore_mindspore.listener,
    mpcore_mindspore.rebuild,
    mpcore_mindspore.recorder,
    mpcore_mindspore.dry_run,
    mpcore_mindspore.dry_run,
)
others: tuple[Probe, Differences] = (mpcore_numpy.probe, mpcore_jax.differences)
