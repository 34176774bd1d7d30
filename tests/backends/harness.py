"""What the suites for every backend share: the conformance suite's harness, and our kits."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from mpcore.conformance.harness import (
    POLICIES,
    Trained,
    X,
    Y,
    assert_same,
    find_kit,
    oracle_weights,
)

__all__ = ["POLICIES", "Trained", "X", "Y", "assert_same", "load_kit", "oracle_weights"]

HERE = Path(__file__).parent


def load_kit(name: str):
    """Return our kit of a framework; the reference's is its package's, as the oracle of all."""
    if name == "numpy":
        return find_kit(name)
    spec = importlib.util.spec_from_file_location(f"kit_{name}", HERE / f"kit_{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kit
