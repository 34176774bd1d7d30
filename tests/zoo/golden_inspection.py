"""What torch's layers make of a batch, in float32: ``python tests/zoo/golden_inspection.py``.

``inspection.npz`` holds, for every architecture with its neutral weights: ``<name>.paths``, the
layer of each call in order; ``<name>.norms`` (calls, 2), the L2 norms of its first output and of
the gradient of that, NaN for one that is not there; ``<name>.buckets`` (calls, 2, 128), float32,
the count sketches of both, from which distances can be told. ``settings.json`` holds the
attributes of every layer by path.
"""

from __future__ import annotations

import json
from pathlib import Path

import golden
import numpy as np
import zoo

import mpcore as mp
from mpcore.tools.inspection import BUCKETS, Request, inspect

FILE = Path(__file__).parent / "inspection.npz"
SETTINGS = Path(__file__).parent / "settings.json"
REQUEST = Request(layout="channels_first", scale=1.0)


def inspected(driver, name, entry, policy="float32", request=REQUEST):
    model = golden.built(driver, name, entry)
    amp = mp.prepare(model, entry.optimizer(model), policy)
    batch = entry.tensors(entry.batch(zoo.generator(name)))
    return inspect(model, amp, entry.loss(model), *batch, request=request)


def rows(found):
    """Return paths, norms and count sketches of the first output and its gradient."""
    calls = [call for call in found.calls if call.category != "op"]
    norms = np.full((len(calls), 2), np.nan, np.float32)
    buckets = np.zeros((len(calls), 2, BUCKETS), np.float32)
    for index, call in enumerate(calls):
        for place, one in enumerate((call.outputs[0], call.grad_outputs[0])):
            if one is not None:
                norms[index, place], buckets[index, place] = one.norm, one.buckets
    return np.array([call.path for call in calls]), norms, buckets


def write() -> None:
    from zoo_torch import ZOO

    driver = mp.load_backend("torch").driver()
    arrays, texts = {}, []
    for name, entry in ZOO.items():
        found = inspected(driver, name, entry)
        for kind, array in zip(("paths", "norms", "buckets"), rows(found), strict=True):
            arrays[f"{name}.{kind}"] = array
        each = {call.path: call.attributes for call in found.calls}
        lines = [
            f"    {json.dumps(path)}: {json.dumps(settings)}" for path, settings in each.items()
        ]
        texts.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    np.savez_compressed(FILE, **arrays)
    SETTINGS.write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="ascii")


if __name__ == "__main__":
    write()
