"""A sample of the facts is executed: the committed result holds, and a wrong fact is found."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("mindspore")

from fact_plant import found_out, plants
from fact_run import Pair, execute
from fact_table import clashes, row_of

from mpcore_port.mindspore.checked import results, signature, signatures
from mpcore_port.mindspore.tables import FILES, table

HEAD = results()[""]
NAMES = [name for name, row in results().items() if name and "fails" not in row]
SLOW = ("Conv", "Transformer", "LSTM", "GRU", "RNN", "optim", "Norm", "interpolate", "Pool")


@pytest.fixture(scope="module")
def pair():
    with Pair() as made:
        yield made


def test_a_sample_gives_the_committed_rows(pair):
    quick = [name for name in NAMES if not any(word in name for word in SLOW)]
    for name in random.Random(20261122).sample(quick, 40):
        assert row_of(execute(pair, [name])) == results()[name], name


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(8))
def test_all_committed_rows_are_what_comes_out(pair, part):
    found = {name: execute(pair, [name]) for name in [one for one in results() if one][part::8]}
    stale = [name for name, cases in found.items() if row_of(cases) != results()[name]]
    clashing = [one.case.code for cases in found.values() for one in clashes(cases)]
    assert (stale, clashing) == ([], [])


def test_wrong_facts_are_found(pair):
    quick = [p for p in plants(60, seed=1) if not any(word in p.wrong.name for word in SLOW)]
    for plant in quick[:4]:
        assert found_out(pair, plant), f"{plant.wrong.name} {plant.what}"


def test_every_mapped_row_that_takes_arguments_has_a_result():
    rows = [row for file in FILES for row in table(file).values()]
    known = [row.name for row in rows if row.name in signatures() and not row.refuse_all]
    missing = [name for name in known if name not in results()]
    assert missing == ["torch.nn.SyncBatchNorm"]  # runs on Ascend only


def test_the_result_says_with_what_it_was_measured():
    assert set(HEAD) == {"torch", "mindspore", "device"}


@pytest.mark.parametrize("name", ["torch.add", "torch.nn.Conv2d", "Tensor.sum"])
def test_a_parameter_that_was_not_exercised_has_no_row(name):
    held, sign = results()[name]["params"], signature(name)
    assert sign is not None
    assert set(held) <= {param.name for param in sign.params}
    assert "out" not in held
