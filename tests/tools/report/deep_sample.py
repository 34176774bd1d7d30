"""Results that go into depth, as the runner hands them over; on top of those of ``sample``."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

CONFIGURATIONS = (
    "torch",
    "torch:compiled",
    "torch:float64",
    "torch@/opt/frameworks/2026/torch-2.12.1-long-name/bin/python",
    "tensorflow",
    "tensorflow:compiled",
    "mindspore",
    "mindspore:compiled",
    "numpy:float64",
    "torch:cuda",
    "torch:npu",
    "tensorflow@/usr/bin/python3.12",
)
"""Twelve configurations of a comparison."""

DIVERGES_AT = "features.1"
LONG = "encoder.layers.11.attention.self_attention.output_projection.dense_with_a_long_name"

_KEYS = ("output", "grad", "param_grad", "update")
_EPS = {
    "kind": "eps",
    "layer": DIVERGES_AT,
    "own_layer": "batch_normalization",
    "phase": "forward",
    "evidence": [
        "The inputs of features.1 agree (5e-8), its outputs do not: 3.1e-02, noise explains 4e-06.",
        "With eps=0.001 in place of 1e-05 torch's inputs give tensorflow's outputs (2.1e-07).",
        "Setting: eps is 1e-05 in torch, 0.001 in tensorflow.",
    ],
    "fix": "Give tensorflow's layer epsilon=1e-5: the default of Keras is 1e-3.",
    "confidence": "sure",
}
_LOSS = {
    "kind": "loss reduction",
    "layer": "(loss)",
    "own_layer": "(loss)",
    "phase": "loss",
    "evidence": ["tensorflow's loss is 16.00 times torch's: a sum over the batch of 16."],
    "fix": "Use reduction='sum_over_batch_size'.",
    "confidence": "possible",
}


def deep(result: dict[str, Any]) -> dict[str, Any]:
    """Return ``sample.sample()`` with depth, post-mortems, memory and observations."""
    for place, pair in enumerate(result["pairs"]):
        if pair["lockstep"] is None:
            continue
        diverges = pair["b"] == "tensorflow" and pair["policy"] != "float32"
        pair["depth"] = depth(result["runs"][0]["plan"]["layers"], place, diverges=diverges)
    for run in result["runs"]:
        if run["status"] != "ok":
            continue
        framework, _, mode = run["backend"].partition(":")
        run["configuration"] = {
            "backend": framework,
            "mode": mode or "eager",
            "device": "cpu",
            "python": "",
        }
        run["memory"] = {
            "predicted_bytes_per_param": 16.0,
            "measured_bytes_per_param": 16.0 + len(run["backend"]) / 10,
        }
        run["postmortems"] = [
            post_mortem(skip["step"], run["scale"][skip["step"]]) for skip in run["skipped"]
        ]
        run["observed"] = _observed(run["plan"]["layers"], faulty=run["backend"] == "torch")
    return result


def depth(layers: list[dict[str, Any]], seed: int, *, diverges: bool) -> dict[str, Any]:
    """Return one step in depth over the layers of a plan; those behind the divergence differ."""
    rng, behind, rows = random.Random(seed), False, []
    for layer in layers:
        behind = behind or (diverges and layer["path"] == DIVERGES_AT)
        rows.append(_row(layer, rng, 3e-2 if behind else 2e-7))
    if diverges:
        rows[-1]["update"] = {**rows[-1]["update"], "relative": "inf", "cosine": "nan"}
    first = {"phase": "forward", "layer": DIVERGES_AT, "own_layer": "batch_normalization"}
    return {
        "rows": rows,
        "first": {**first, "relative": 3.1e-2, "tolerance": 4e-6} if diverges else None,
        "root_causes": [_EPS, _LOSS] if diverges else [],
        "verdict": f"different: forward, {DIVERGES_AT}, eps" if diverges else "same",
        "exact": {"wrong": "b", "why": "against torch:float64, beyond rounding: tensorflow"},
        "ops": [_row({"path": f"{DIVERGES_AT}/0:native_batch_norm"}, rng, 3e-2)]
        if diverges
        else [],
        "how": "Step 0 from the same weights and batch; tolerances from 3 passes moved by one ulp.",
    }


def _row(layer: dict[str, Any], rng: random.Random, size: float) -> dict[str, Any]:
    path = layer["path"]
    own = "batch_normalization" if path == DIVERGES_AT else path
    row = {"path": path, "own_path": own, "type": layer.get("type", ""), "category": ""}
    told = {key: _difference(size * 10 ** rng.uniform(-1.2, 1.2)) for key in _KEYS}
    has_weights = bool(layer.get("param"))
    return row | {key: told[key] if has_weights or key in _KEYS[:2] else None for key in _KEYS}


def _difference(relative: float) -> dict[str, Any]:
    return {
        "relative": relative,
        "cosine": 1 - relative**2 / 2,
        "largest": relative * 9,
        "off": min(relative * 20, 1.0),
        "ulp": relative * 2**23,
        "tolerance": 4e-6,
        "beyond": relative > 4e-6,
    }


def post_mortem(step: int, scale: float) -> dict[str, Any]:
    """Return the post-mortem of a step, which counts from 0 in a result."""
    return {
        "step": step,
        "phase": "backward",
        "layer": "features.4",
        "type": "Conv2d",
        "op": "convolution_backward",
        "dtype": "float16",
        "peak": 131008.0 * (1 + step),
        "limit": 65504.0,
        "scale": scale,
        "safe_scale": 8192.0,
        "constants": [
            {"where": "features.5 eps", "value": 1e-12, "limit": 6e-08, "suggest": 1e-05},
            {"where": "head mask", "value": -1e9, "limit": 65504.0, "suggest": -65504.0},
        ],
        "rule": "full features.4",
        "policy": "mixed_float16; full features.4",
        "fixes": True,
        "tried": [
            {"rule": "full features.4", "passed": True, "note": ""},
            {"rule": "full features", "passed": False, "note": "still overflows in head"},
        ],
        "advice": "Start with init_scale=8192, or keep features.4 in float32.",
        "sentence": "The gradient of features.4 (Conv2d) left float16 in the backward pass.",
    }


def _observed(layers: list[dict[str, Any]], *, faulty: bool) -> dict[str, Any]:
    rows = []
    for layer in layers:
        low = [layer["compute"].replace("follow", "float32")]
        wrong = faulty and layer["path"] == "head"
        faults = ["computed in float16, planned float32"] if wrong else []
        kernels = ["float16"] if wrong else low
        rows.append({"path": layer["path"], "kernels": kernels, "output": low, "faults": faults})
    return {"judged": 5, "differing": sum(bool(row["faults"]) for row in rows), "rows": rows}


def across(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result whose only pairs are of one backend under two policies."""
    result["runs"] = [run for run in result["runs"] if run["backend"] == "torch"]
    layers = result["runs"][0]["plan"]["layers"]
    pair = result["pairs"][0] | {"a": "torch", "b": "torch"}
    result["pairs"] = [
        {
            **pair,
            "policy": "float32",
            "a_policy": "float32",
            "b_policy": policy,
            "verdict": "different: beyond noise by 2.5x at step 12",
            "depth": depth(layers, 3, diverges=True),
        }
        for policy in ("mixed_bfloat16", "mixed_float16")
    ]
    return result


def crowd(result: dict[str, Any]) -> dict[str, Any]:
    """Return twelve configurations under one policy, each with each, of 60 long-named layers."""
    template, pair = result["runs"][0], result["pairs"][0]
    entry = result["runs"][0]["plan"]["layers"][2]
    layers = [{**entry, "path": f"{LONG}.{place}"} for place in range(59)]
    layers.insert(7, {**entry, "path": DIVERGES_AT})
    plan = {**template["plan"], "layers": layers}
    result["runs"] = [
        _run(template, name, place, plan) for place, name in enumerate(CONFIGURATIONS)
    ]
    result["pairs"] = []
    for place, (a, b) in enumerate(itertools.combinations(CONFIGURATIONS, 2)):
        diverges = "tensorflow" in (a, b)
        found = {**pair, "a": a, "b": b, "verdict": "same"}
        if diverges:
            found["verdict"] = f"different: lock-step gradient beyond noise by {place + 2}x"
        if a == "torch":
            found["depth"] = depth(layers, place, diverges=diverges)
        result["pairs"].append(found)
    return deep_runs(result)


def deep_runs(result: dict[str, Any]) -> dict[str, Any]:
    """Give every run of a result some post-mortems, as many as it skipped steps."""
    for run in result["runs"]:
        run["postmortems"] = [post_mortem(step, 65536.0) for step in range(4)]
    return result


def _run(template: dict[str, Any], name: str, place: int, plan: dict[str, Any]) -> dict[str, Any]:
    loss = [value * (1 + place / 400) for value in template["loss"]]
    scale = [65536.0 / 2 ** (step // (4 + place)) for step in range(len(loss))]
    framework, _, mode = name.partition(":")
    return {
        **template,
        "backend": name,
        "policy": "float32",
        "loss": loss,
        "scale": scale,
        "plan": plan,
        "configuration": {"backend": framework, "mode": mode or "eager", "device": "cpu"},
        "memory": {
            "predicted_bytes_per_param": 16.0,
            "measured_bytes_per_param": 16 + math.log2(place + 1),
        },
    }
