"""Metrics of torchmetrics, by what the package gave; ``record_metrics.py`` says how."""

from __future__ import annotations

import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

import mpcore_port_runtime as port
from mpcore.errors import BackendError

from .ports import ported
from .record_metrics import batches

TRACES = json.loads((Path(__file__).parent / "traces" / "metrics.json").read_text("utf-8"))


@pytest.mark.parametrize(("given", "kind", "alone", "whole"), TRACES["accuracy"])
def test_accuracy_of_batches_and_of_all(given, kind, alone, whole):
    metric = port.metrics.Accuracy(**given).to("npu:0")
    for number, (found, wanted) in enumerate(batches(kind)):
        dtype = ms.float32 if np.asarray(found).dtype.kind == "f" else ms.int64
        batch = ms.Tensor(found, dtype), ms.Tensor(wanted, ms.int64)
        np.testing.assert_allclose(metric(*batch).asnumpy(), alone[number], rtol=1e-6)
        once = port.metrics.accuracy(*batch, **given)
        np.testing.assert_allclose(once.asnumpy(), alone[number], rtol=1e-6)
    np.testing.assert_allclose(metric.compute().asnumpy(), whole, rtol=1e-6)
    metric.reset()
    assert not metric.compute().asnumpy().any()


@pytest.mark.parametrize(("given", "values", "whole"), TRACES["mean"])
def test_mean_of_what_is_logged(given, values, whole):
    metric = port.metrics.MeanMetric(**given)
    for value in values:
        metric.update(*(ms.Tensor(one, ms.float32) for one in value))
    np.testing.assert_allclose(metric.compute().asnumpy(), whole, rtol=1e-6)


@pytest.mark.parametrize(("given", "values", "alone", "whole"), TRACES["sum"])
def test_sum_of_what_is_logged(given, values, alone, whole):
    metric = port.metrics.SumMetric(**given)
    for value, of_one in zip(values, alone, strict=True):
        np.testing.assert_allclose(metric(ms.Tensor(value, ms.float32)).asnumpy(), of_one)
    np.testing.assert_allclose(metric.compute().asnumpy(), whole, rtol=1e-6)
    metric.reset()
    assert metric.compute() == 0


def test_classes_by_their_tasks_average_over_classes():
    found, wanted = batches("scores")[0]
    batch = ms.Tensor(found, ms.float32), ms.Tensor(wanted, ms.int64)
    same = port.metrics.Accuracy("multiclass", num_classes=5, average="macro")(*batch)
    assert port.metrics.MulticlassAccuracy(5)(*batch) == same
    assert port.metrics.BinaryAccuracy(0.5)(ms.Tensor([0.7, 0.2]), ms.Tensor([1, 1])) == 0.5
    table = ms.Tensor([[0.7, 0.2]]), ms.Tensor([[1, 1]])
    assert port.metrics.MultilabelAccuracy(2)(*table) == 0.5


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"task": "other"}, "one of binary"),
        ({"task": "multiclass"}, "needs num_classes"),
        ({"task": "binary", "average": "best"}, "micro, macro"),
        ({"task": "binary", "multidim_average": "samplewise"}, "over all samples"),
        ({"task": "binary", "sync": True}, "does not take sync"),
    ],
)
def test_settings_that_are_not_there_are_refused(given, told):
    with pytest.raises(BackendError, match=told):
        port.metrics.Accuracy(**given)


def test_values_that_do_not_fit_are_refused():
    metric = port.metrics.Accuracy("multiclass", num_classes=3)
    with pytest.raises(BackendError, match="target has 0 to 3"):
        metric.update(ms.Tensor([0, 1]), ms.Tensor([0, 3]))
    with pytest.raises(BackendError, match="do not fit"):
        metric.update(ms.Tensor([0, 1]), ms.Tensor([0, 1, 1]))
    assert metric.compute() == 0


SCRIPT = """import torch
import torchmetrics
metric = torchmetrics.Accuracy(task="multiclass", num_classes=3).to(torch.device("cuda"))
metric.update(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1]))
made = [round(metric.compute().item(), 4)]
other = torchmetrics.F1Score(task="binary")
"""
KNOWN = SCRIPT.rpartition("other =")[0]


def test_what_is_not_ported_is_refused_where_it_is_used():
    found = ported(SCRIPT)
    assert "port.metrics.Accuracy" in found.text
    (refused,) = [one for one in found.edits if one.kind == "refused"]
    assert refused.old == "import torchmetrics"  # F1Score needs it
    assert not [one for one in ported(KNOWN).edits if one.kind == "refused"]
