"""The suite of all backends on JAX."""

from __future__ import annotations

import pytest

pytest.importorskip("jax", reason="jax is not installed: make jax")
from kit_jax import kit as own

from mpcore.conformance.suite import *  # noqa: F403


@pytest.fixture(scope="module")
def kit():
    return own


@pytest.fixture(params=own.modes)
def mode(request):
    return request.param
