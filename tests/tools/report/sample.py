"""A result as the runner hands it over: 3 x 3 runs, one simulated and one failed."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

BACKENDS = ("torch", "tensorflow", "mindspore")
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
STEPS = 30
FAILED = ("mindspore", "mixed_float16")
SIMULATED = ("mindspore", "mixed_bfloat16")
SKIPPED = {"torch": (0, 1, 12), "tensorflow": (0, 12)}

_LOW = {"float32": "float32", "mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}
_NOISE = {"float32": 0.002, "mixed_bfloat16": 0.015, "mixed_float16": 0.004}
_SECONDS = {"torch": 0.0124, "tensorflow": 0.0187, "mindspore": 0.0341}
_SPEED = {"float32": 1.0, "mixed_bfloat16": 0.71, "mixed_float16": 1.64}
_VERSIONS = {
    "torch": {"torch": "2.13.0", "numpy": "1.26.4"},
    "tensorflow": {"tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "1.26.4"},
    "mindspore": {"mindspore": "2.10.0", "numpy": "1.26.4"},
}
_LAYERS = (
    ("", "container", "Sequential", False),
    ("features", "container", "Sequential", False),
    ("features.0", "conv", "Conv2d", True),
    ("features.1", "norm", "BatchNorm2d", True),
    ("features.2", "activation", "ReLU", False),
    ("features.3", "pooling", "MaxPool2d", False),
    ("features.4", "conv", "Conv2d", True),
    ("features.5", "norm", "BatchNorm2d", True),
    ("head", "linear", "Linear", True),
)


def sample() -> dict[str, Any]:
    """Return a fresh result; equal at every call."""
    rng = random.Random(0)
    return {
        "experiment": "image_cnn",
        "file": "experiment.py",
        "created": "2026-11-20T12:00:00",
        "settings": {
            "steps": STEPS,
            "batch": 16,
            "seed": 0,
            "lockstep_steps": 10,
            "noise_runs": 3,
            "cores": 2,
            "platform": "Linux 6.1 x86_64",
            "python": "3.11.7",
        },
        "tolerances": {p: [_NOISE[p] * (1 + i / 6) for i in range(STEPS)] for p in POLICIES},
        "runs": [_run(b, p, rng) for b, p in itertools.product(BACKENDS, POLICIES)],
        "pairs": [
            _pair(a, b, policy)
            for policy in POLICIES
            for a, b in itertools.combinations(BACKENDS, 2)
        ],
    }


def failed_only() -> dict[str, Any]:
    """Return a result in which nothing ran."""
    result = sample()
    result["runs"] = [
        _no_run("torch", "float32", "failed", "RuntimeError: out of memory"),
        _no_run("mindspore", "float32", "not run", "mindspore is not installed"),
    ]
    result["pairs"] = []
    del result["tolerances"]
    return result


def single_backend() -> dict[str, Any]:
    """Return a result of one framework, so without pairs and without noise tolerances."""
    result = sample()
    result["runs"] = [run for run in result["runs"] if run["backend"] == "torch"]
    result["pairs"] = []
    del result["tolerances"]
    return result


def _run(backend: str, policy: str, rng: random.Random) -> dict[str, Any]:
    if (backend, policy) == FAILED:
        return _no_run(backend, policy, "failed", "TypeError: Conv2D refuses float16 on CPU")
    skips = SKIPPED.get(backend, ()) if policy == "mixed_float16" else ()
    loss = _loss(policy, rng)
    stepped = [step not in skips for step in range(STEPS)]
    scale = _scale(stepped) if policy == "mixed_float16" else [1.0] * STEPS
    norm: list[Any] = [3.1 * math.exp(-i / 14) * rng.uniform(0.9, 1.1) for i in range(STEPS)]
    for step in skips:
        norm[step] = "inf"
    median = _SECONDS[backend] * _SPEED[policy]
    reasons = [f"non-finite gradients, first in features.4.weight, at scale {s:g}" for s in scale]
    return {
        "backend": backend,
        "policy": policy,
        "device": "cpu",
        "simulated": (backend, policy) == SIMULATED,
        "status": "ok",
        "error": None,
        "loss": loss,
        "scale": scale,
        "stepped": stepped,
        "grad_norm": norm,
        "step_seconds": {
            "median": median,
            "p90": median * rng.uniform(1.05, 1.3),
            "others": 0.02,
        },
        "peak_memory_bytes": int(rng.uniform(4.1e8, 9.2e8)),
        "test_accuracy": rng.uniform(0.78, 0.84),
        "versions": _VERSIONS[backend],
        "skipped": [{"step": step, "reason": reasons[step]} for step in skips],
        "plan": _plan(policy),
        "records": [
            {"step": i, "loss": loss[i], "scale": scale[i], "stepped": stepped[i]}
            for i in range(STEPS)
        ],
    }


def _no_run(backend: str, policy: str, status: str, error: str) -> dict[str, Any]:
    return {
        "backend": backend,
        "policy": policy,
        "device": "cpu",
        "simulated": False,
        "status": status,
        "error": error,
        "loss": [],
        "scale": [],
        "stepped": [],
        "grad_norm": [],
        "step_seconds": None,
        "peak_memory_bytes": None,
        "test_accuracy": None,
        "versions": {},
        "skipped": [],
        "plan": None,
    }


def _loss(policy: str, rng: random.Random) -> list[float]:
    shape = random.Random(7)  # the batches are the same for everyone
    clean = [0.35 + 1.95 * math.exp(-i / 9) + shape.uniform(-0.09, 0.09) for i in range(STEPS)]
    return [v * (1 + _NOISE[policy] * (i / 12) * rng.gauss(0, 1)) for i, v in enumerate(clean)]


def _scale(stepped: list[bool]) -> list[float]:
    scales, scale = [], 65536.0
    for moved in stepped:
        scales.append(scale)
        scale *= 1.0 if moved else 0.5
    return scales


def _plan(policy: str) -> dict[str, Any]:
    low = _LOW[policy]
    dtypes = {"conv": (low, low), "linear": (low, low), "norm": ("float32", low)}
    layers = []
    for path, category, kind, has_params in _LAYERS:
        compute, output = dtypes.get(category, ("follow", "follow"))
        entry = {"path": path, "category": category, "type": kind}
        entry |= {"param": "float32" if has_params else "", "compute": compute, "output": output}
        layers.append(entry | {"rule": f"default for {category}"})
    if low != "float32":
        layers[-1] |= {"compute": "float32", "output": "float32", "rule": "rule: full *head"}
    return {"policy": policy, "loss_scale": "none", "layers": layers, "unused_rules": []}


def _pair(a: str, b: str, policy: str) -> dict[str, Any]:
    if FAILED in ((a, policy), (b, policy)):
        verdict = f"not compared: {FAILED[0]} {FAILED[1]} failed"
        return {
            "a": a,
            "b": b,
            "policy": policy,
            "lockstep": None,
            "free": None,
            "verdict": verdict,
        }
    size = {"float32": 1e-7, "mixed_bfloat16": 4e-3, "mixed_float16": 6e-4}[policy]
    verdict = "same"
    if (a, policy) == ("torch", "mixed_float16"):
        verdict = "different: torch skipped 3 steps, tensorflow 2; first at step 1"
    if (b, policy) == ("mindspore", "mixed_bfloat16") and a == "tensorflow":
        verdict = "too noisy to tell"
    return {
        "a": a,
        "b": b,
        "policy": policy,
        "lockstep": {
            "steps": 10,
            "max_rel_loss_diff": size * 1.2,
            "max_rel_grad_diff": size * 9.5,
            "max_rel_update_diff": 0.0 if policy == "mixed_float16" else size * 0.31,
        },
        "free": {"max_rel_loss_diff": _NOISE[policy] * 2.3, "tolerance": _NOISE[policy] * 5.8},
        "verdict": verdict,
    }
