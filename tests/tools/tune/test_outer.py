"""What is measured beside the policy: each move is run, told, and never part of the policy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpcore as mp
from mpcore._lib.machine import kept_memory_variables
from mpcore.tools.experiment.experiment import Experiment
from mpcore.tools.profiling.stepping import Run
from mpcore.tools.tune.bench import Bench
from mpcore.tools.tune.evidence import gather
from mpcore.tools.tune.outer import try_moves
from mpcore.tools.tune.page import page
from mpcore.tools.tune.task import Task
from mpcore.tools.tune.toml import document
from mpcore.tools.tune.words import lines

nn = pytest.importorskip("torch.nn")


def build():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def experiment() -> Experiment:
    x = np.random.default_rng(0).normal(size=(8, 2, 6, 6)).astype(np.float32)
    y = np.arange(8, dtype=np.int32) % 3
    data = mp.Data(x, y, x[:0], y[:0], layout="channels_first")
    return Experiment(
        "net", Path("(none)"), lambda: data, "cross_entropy", mp.OptimizerSpec(),
        {"torch": build}, batch=4,
    )  # fmt: skip


def tried(budget: float, earlier: list[dict], afresh: object = None) -> list[dict]:
    told: list[dict] = []
    task = Task("torch", budget=budget)
    bench = Bench(experiment(), task, lambda **e: told.append(e), lambda _: earlier)
    try_moves(bench, "mixed_bfloat16", afresh)
    return [event["found"] for event in told if "found" in event]


def test_each_move_is_measured_once_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.compile", lambda model: model)  # which takes a minute
    found = tried(1e6, [])
    moves = {e["move"]: e for e in found if e["kind"] == "outer"}
    assert {"batch=8", "batch=2", "channels_last", "torch.compile"} <= set(moves)
    assert any(move.startswith("threads=") for move in moves)
    assert not any(e["why"] for e in moves.values())
    assert all(e["ratio"] > 0 and e["pairs"] >= 8 for e in moves.values())
    again = tried(1e6, list(moves.values()))
    assert [e for e in again if e["kind"] == "outer"] == list(moves.values())

    entries = [*found, {"kind": "winner", "policy": "mixed_bfloat16", "stage": "proven"}]
    answer = gather(entries)
    (line,) = [line for line in lines(answer) if line.startswith("beside")]
    assert all(f"{move} " in line for move in moves)
    assert mp.Policy.from_toml(document(answer)) == mp.Policy.named("mixed_bfloat16")
    assert "# beside" in document(answer)
    assert "channels_last" in page("net", {"torch": answer})
    json.dumps(answer.to_dict(), allow_nan=False)


class Processes:
    """Other processes, in which a step takes a second, or less where freed memory is kept."""

    def __init__(self, kept: float, why: str = "") -> None:
        self._kept, self._why = kept, why

    def rounds(self, bench, policies, count, environment=None) -> dict:
        if self._why:
            return {"why": self._why}
        seconds = self._kept if environment else 1.0
        return {"why": "", "steps": 0, "seconds": dict.fromkeys(policies, [seconds] * count)}


@pytest.mark.skipif(not kept_memory_variables(), reason="no glibc here")
@pytest.mark.parametrize(("kept", "decided"), [(0.8, "faster"), (1.0, ""), (1.2, "slower")])
def test_memory_that_is_kept_is_tried_in_other_processes(kept, decided, monkeypatch) -> None:
    monkeypatch.setattr("torch.compile", lambda model: model)
    moves = {e["move"]: e for e in tried(1e6, [], Processes(kept)) if e["kind"] == "outer"}
    found = moves["freed memory kept"]
    assert (found["ratio"], found["decision"], found["pairs"]) == (kept, decided, 16)
    assert "MALLOC_TRIM_THRESHOLD_=67108864" in found["how"]
    assert {"batch=8", "channels_last"} <= set(moves)
    others = [entry for move, entry in moves.items() if move != "freed memory kept"]
    lost = tried(1e6, others, Processes(1.0, "it told nothing"))
    (entry,) = [e for e in lost if e.get("move") == "freed memory kept" and e["kind"] == "outer"]
    assert entry["why"] == "it told nothing"


@pytest.mark.skipif(not kept_memory_variables(), reason="no glibc here")
def test_memory_is_kept_where_the_variables_say_so() -> None:
    code = (
        "import ctypes, resource; block = 8 << 20\n"
        "libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p\n"
        "libc.free.argtypes = [ctypes.c_void_p]\n"
        "def faults():\n"
        "    held = libc.malloc(block)\n"
        "    ctypes.memset(ctypes.c_void_p(held), 1, block); libc.free(held)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "faults(); a = faults(); print(faults() - a)\n"
    )
    env = {**os.environ, **kept_memory_variables()}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert int(ran.stdout) < 8, ran.stderr


def test_a_compiler_that_fails_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model):
        raise AssertionError("no\ncompiler here")  # noqa: EM101

    monkeypatch.setattr("torch.compile", broken)
    (entry,) = [e for e in tried(1e6, []) if e.get("move") == "torch.compile"]
    assert entry["why"] == "no compiler here"
    assert "ratio" not in entry


def test_what_the_budget_does_not_reach_is_told_and_tried_again_later() -> None:
    found = tried(1e-3, [])
    assert {e["move"] for e in found if e["kind"] == "untried"} >= {"batch=8", "channels_last"}
    assert not any(e["kind"] == "outer" for e in found)


def test_the_layout_is_that_of_weights_and_images() -> None:
    import torch

    one = experiment()
    plain = Run(one, "torch", one.data(), "float32", steps=1)
    move = plain.backend.moves().moves(plain.model, plain.batches[0], 2)["channels_last"]
    run = Run(one, "torch", one.data(), "float32", steps=1, move=move)
    assert run.model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert run.batches[0][0].is_contiguous(memory_format=torch.channels_last)
    before = run.model[0].weight.detach().clone()
    run.seconds()
    assert not torch.equal(before, run.model[0].weight)
