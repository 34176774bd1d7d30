"""Methods of numpy's arrays that torch's tensors have too, where no rule sees which it is."""

from __future__ import annotations

import pytest

from .ports import beside, ported

METHODS = {
    "argsort": "m.reshape(-1).argsort()[::-1]",
    "argsort, by row": "m.argsort(1)[:, ::-1]",
    "cumsum": "m.reshape(-1).cumsum(0)",
    "std": "m.std()",
    "var": "m.var(0)",
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_arrays_that_come_from_out_of_sight_keep_numpys_methods(method, tmp_path):
    beside(
        f"""import numpy as np
import torch
def taken(m):
    return {method}
of = [np.arange(6.0).reshape(2, 3)[:, ::-1] / 2, torch.tensor([[0.5, 2.0, 1.0], [3.0, 1.0, 7.0]])]
made = [np.ascontiguousarray(taken(of[0]))]
if "argsort" not in "{method}":
    made.append(taken(of[1]))
""",
        tmp_path,
    )


def test_a_layer_of_another_file_has_its_sizes_by_torchs_names(tmp_path):
    script = """import torch
def classes(model):
    return model.fc.out_features
"""
    assert 'port.held(model.fc, "out_features")' in ported(script).text
    kept = script.replace("model.fc", "args")
    assert "args.out_features" in ported(kept).text
