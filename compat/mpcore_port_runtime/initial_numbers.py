"""Where initial weights take their numbers from: MindSpore's seed, never numpy's stream.

MindSpore 2.10 seeds each initialiser from numpy's global stream (mindspore/common/initializer.py,
``_numpy_seed``), and draws the weights of recurrent layers from it (nn/layer/rnns.py,
rnn_cells.py), so that what a script draws with numpy is moved on by each layer that is made;
torch's layers leave it alone. Where a port imports this package, initialisers count from the seed
of ``ms.set_seed``, as MindSpore's random operations do (mindspore/common/seed.py), and where none
was set they begin anywhere.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore.common import initializer
from mindspore.common.seed import _get_graph_seed
from mindspore.nn.layer import rnn_cells, rnns

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["own_draws"]

_ANYWHERE = np.random.RandomState()
"""What nobody seeded."""


def own_draws() -> np.random.RandomState:
    """Return numbers that nobody else draws; ``ms.set_seed`` begins the row of them anew."""
    seeds = _get_graph_seed(0, "mpcore_port_runtime.initial_numbers")
    return np.random.RandomState(seeds) if any(seeds) else _ANYWHERE


def _seed_of_an_initialiser() -> Any:
    return own_draws().randint(1, 2**63 - 1, dtype=np.int64)


initializer._numpy_seed = _seed_of_an_initialiser


def _apart(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that draws from numpy's stream itself, which stays where it was."""

    @functools.wraps(method)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        scripts = np.random.get_state()  # noqa: NPY002  # the stream that scripts draw from
        np.random.set_state(own_draws().get_state())  # noqa: NPY002
        try:
            return method(*args, **kwargs)
        finally:
            np.random.set_state(scripts)  # noqa: NPY002

    return drawn


rnns._RNNBase.__init__ = _apart(rnns._RNNBase.__init__)
rnn_cells.RNNCellBase.__init__ = _apart(rnn_cells.RNNCellBase.__init__)
initializer.Sparse._initialize = _apart(initializer.Sparse._initialize)
