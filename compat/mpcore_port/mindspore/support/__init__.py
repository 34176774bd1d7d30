"""What ported scripts import as ``port``: torch's meaning where MindSpore has none of its own."""

from __future__ import annotations

from mpcore_port.mindspore.support import apex as apex
from mpcore_port.mindspore.support import pictures as pictures
from mpcore_port.mindspore.support import vision as vision
from mpcore_port.mindspore.support.compiling import *  # noqa: F403
from mpcore_port.mindspore.support.cycles import *  # noqa: F403
from mpcore_port.mindspore.support.data import *  # noqa: F403
from mpcore_port.mindspore.support.device import *  # noqa: F403
from mpcore_port.mindspore.support.files import *  # noqa: F403
from mpcore_port.mindspore.support.functional import *  # noqa: F403
from mpcore_port.mindspore.support.functions import *  # noqa: F403
from mpcore_port.mindspore.support.layers import *  # noqa: F403
from mpcore_port.mindspore.support.loading import *  # noqa: F403
from mpcore_port.mindspore.support.modules import *  # noqa: F403
from mpcore_port.mindspore.support.optimizers import *  # noqa: F403
from mpcore_port.mindspore.support.random import *  # noqa: F403
from mpcore_port.mindspore.support.rates import *  # noqa: F403
from mpcore_port.mindspore.support.regions import *  # noqa: F403
from mpcore_port.mindspore.support.schedules import *  # noqa: F403
from mpcore_port.mindspore.support.sequences import *  # noqa: F403
from mpcore_port.mindspore.support.training import *  # noqa: F403
