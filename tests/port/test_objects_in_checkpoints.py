"""What stands in a checkpoint beside tensors comes back as what it was."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import enum
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest

import mpcore_port_runtime as port


class Mode(enum.Enum):
    TRAIN = "train"
    EVAL = "eval"


class Phase(enum.IntEnum):
    FIRST = 1


class Parts(enum.Flag):
    HEAD = 1
    BODY = 2


@dataclasses.dataclass
class Settings:
    rate: float = 0.1
    mode: Mode = Mode.EVAL
    phases: list = dataclasses.field(default_factory=lambda: [Phase.FIRST])


KEPT = {
    "member": Mode.TRAIN,
    "whole member": Phase.FIRST,
    "keyed by members": {Mode.TRAIN: 1, Mode.EVAL: [Settings()]},
    "dataclass": Settings(rate=0.5, mode=Mode.TRAIN),
    "flag": Parts.HEAD,
    "flags": Parts.HEAD | Parts.BODY,
    "namespace": argparse.Namespace(rate=0.1, out=Path("runs/first"), names={"a", "b"}),
    "simple": SimpleNamespace(sizes=[1, 2]),
    "bytes": b"a\xff",
    "complex": 1 + 2j,
    "sets": (set(), frozenset({1})),
    "queue": deque([1.5, 2.5], maxlen=3),
    "range": range(1, 9, 2),
    "slice": slice(1, None),
    "time": datetime.datetime(2020, 1, 2, 3, 4),
    "lasted": datetime.timedelta(1, 2, 3),
    "counts": Counter("aab"),
    "ordered": OrderedDict(b=1, a=2),
    "keys": {(0.5, "box"): 1, 0.75: 2, None: 3, 4: 5},
    "dtypes": (ms.float16, ms.bool_, np.dtype("int16")),
}


@pytest.mark.parametrize("name", KEPT)
def test_an_object_comes_back(name, tmp_path):
    port.save({"epoch": 1, "kept": KEPT[name]}, tmp_path / "x.pt")
    found = port.load(tmp_path / "x.pt")
    assert found == {"epoch": 1, "kept": KEPT[name]}
    assert type(found["kept"]) is type(KEPT[name])


def test_lists_by_default_take_new_keys(tmp_path):
    port.save(defaultdict(list, {"loss": [1.0]}), tmp_path / "x.pt")
    found = port.load(tmp_path / "x.pt")
    found["other"].append(2)
    assert found == {"loss": [1.0], "other": [2]}


def test_arrays_stay_numpys(tmp_path):
    kept = {"state": np.random.RandomState(0).get_state(), "words": np.array(["a", "bc"])}
    port.save(kept, tmp_path / "x.pt")
    found = port.load(tmp_path / "x.pt")
    assert found["words"].tolist() == ["a", "bc"]
    other = np.random.RandomState(1)
    other.set_state(found["state"])
    assert other.rand() == np.random.RandomState(0).rand()
