"""What scripts take from timm: schedules, losses, optimizers, helpers, networks of their own."""

from __future__ import annotations

from mpcore_port_runtime.timm.augments import *  # noqa: F403
from mpcore_port_runtime.timm.builders import *  # noqa: F403
from mpcore_port_runtime.timm.erasing import *  # noqa: F403
from mpcore_port_runtime.timm.heads import *  # noqa: F403
from mpcore_port_runtime.timm.helpers import *  # noqa: F403
from mpcore_port_runtime.timm.layers import *  # noqa: F403
from mpcore_port_runtime.timm.loaders import *  # noqa: F403
from mpcore_port_runtime.timm.losses import *  # noqa: F403
from mpcore_port_runtime.timm.optimizers import *  # noqa: F403
from mpcore_port_runtime.timm.real_labels import *  # noqa: F403
from mpcore_port_runtime.timm.registry import *  # noqa: F403
from mpcore_port_runtime.timm.saving import *  # noqa: F403
from mpcore_port_runtime.timm.schedules import *  # noqa: F403
from mpcore_port_runtime.timm.vision_transformer import *  # noqa: F403
from mpcore_port_runtime.timm.windows import *  # noqa: F403
