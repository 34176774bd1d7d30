"""Layers whose names are handed on: called through the name, each gives what torch's gives."""

from __future__ import annotations

from collections import Counter

import fact_cases
import fact_run
import pytest

pytest.importorskip("torch")
pytest.importorskip("mindspore")

from fact_run import Pair, execute

import mpcore_port_runtime as port
from mpcore_port.mindspore.rules.names.handed import FACTORIES


def through_names(cases):
    """Return the script of some cases in which layers are called by what a dict holds."""
    text = fact_cases.source_of(cases)
    for case in cases:
        last = case.name.rpartition(".")[2]
        text = text.replace(f"return torch.nn.{last}(", f'return HELD["{last}"](')
    held = ", ".join(sorted({f'"{c.name.rpartition(".")[2]}": {c.name}' for c in cases}))
    return text.replace("import torch\n", f"import torch\nHELD = {{{held}}}\n", 1)


@pytest.fixture(scope="module")
def pair():
    with Pair() as made:
        yield made


def test_the_porter_hands_on_what_the_runtime_makes():
    assert sorted(port.torch_nn.__all__) == sorted(FACTORIES)


@pytest.mark.parametrize("name", sorted(FACTORIES))
def test_a_layer_that_is_called_through_its_name_is_torchs(name, pair, monkeypatch):
    monkeypatch.setattr(fact_run, "source_of", through_names)
    found = [one for one in execute(pair, [f"torch.nn.{name}"]) if one.case.why != "edges"]
    ends = Counter(one.end for one in found)
    assert ends["same"] >= 3
    assert not [f"{o.case.code}: {o.words}" for o in found if o.end in ("differs", "refused")]
    raised = [one.words for one in found if one.end == "raises"]
    known = ("NotImplementedError: `", "unexpected keyword argument 'bias'")  # by keyword alone
    assert not [words for words in raised if not any(word in words for word in known)]
