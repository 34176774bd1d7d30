"""The table of levels in docs/policies.md is what the presets say."""

from __future__ import annotations

from pathlib import Path

from mpcore import Layer, ParamInfo, Policy, resolve_plan
from mpcore.policy.policy import PRESETS

DOCS = Path(__file__).parents[3] / "docs" / "policies.md"
W = (ParamInfo("weight", (8, 8), "float32"),)
LAYERS = [
    Layer("fc", "linear", "Linear", W, op="linear"),
    Layer("bn", "norm", "BatchNorm", W, op="batch_norm"),
    Layer("ln", "norm", "LayerNorm", W, op="layer_norm"),
    Layer("gn", "norm", "GroupNorm", W, op="group_norm"),
    Layer("softmax", "softmax", "Softmax", op="softmax"),
]
SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "op": "op list"}


def _shown(compute: str, output: str) -> str:
    compute, output = SHORT.get(compute, compute), SHORT.get(output, output)
    return compute if compute == output else f"{compute}, out {output}"


def _row(policy: Policy) -> list[str]:
    plan = {entry.path: entry for entry in resolve_plan(policy, LAYERS).layers}
    cells = {path: _shown(entry.compute, entry.output) for path, entry in plan.items()}
    norms = [cells[path] for path in ("bn", "ln", "gn")]
    return [
        f"`{policy.name}`",
        SHORT[plan["fc"].param],
        cells["fc"],
        norms[0] if len(set(norms)) == 1 else "BN {}; LN {}; GN {}".format(*norms),
        cells["softmax"],
        SHORT[policy.output] if policy.by != "op" else "per op, model fp32",
        "copy"
        if policy.master == "copy"
        else "none"
        if policy.param != "float32"
        else "params are",
        str(policy.scaling).replace("16777216.0", "2^24"),
        "cast" if policy.inputs == "cast" else "kept",
    ]


def levels_table() -> str:
    head = ["level", "params", "products", "norm", "softmax", "model output", "fp32 master"]
    head += ["loss scale", "inputs"]
    rows = [head, ["---"] * len(head), *(_row(policy) for policy in PRESETS.values())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def test_table_of_levels_is_current() -> None:
    text = DOCS.read_text(encoding="utf-8")
    found = text.partition("a test compares -->\n")[2].partition("\n<!-- end of levels")[0]
    assert found == levels_table()
