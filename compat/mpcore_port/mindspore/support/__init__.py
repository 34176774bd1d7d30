"""What ported scripts import as ``port``: torch's meaning where MindSpore has none of its own."""

from __future__ import annotations

from mpcore_port.mindspore.support.data import *  # noqa: F403
from mpcore_port.mindspore.support.device import *  # noqa: F403
from mpcore_port.mindspore.support.files import *  # noqa: F403
from mpcore_port.mindspore.support.functional import *  # noqa: F403
from mpcore_port.mindspore.support.layers import *  # noqa: F403
from mpcore_port.mindspore.support.modules import *  # noqa: F403
from mpcore_port.mindspore.support.optimizers import *  # noqa: F403
from mpcore_port.mindspore.support.random import *  # noqa: F403
from mpcore_port.mindspore.support.training import *  # noqa: F403
