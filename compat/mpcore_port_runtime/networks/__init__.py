"""Networks of torchvision that training scripts choose by name, as Cells; no weights are fetched.

Parameters have torchvision's names, and first values of the same distributions. Outputs and
gradients with the same weights were compared with torchvision's (``tests/port/test_networks.py``).
"""

from __future__ import annotations

from mpcore_port_runtime.networks.plain import *  # noqa: F403
from mpcore_port_runtime.networks.resnet import *  # noqa: F403
from mpcore_port_runtime.networks.small import *  # noqa: F403
from mpcore_port_runtime.networks.vit import *  # noqa: F403
from mpcore_port_runtime.networks.weights import *  # noqa: F403
