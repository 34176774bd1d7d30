"""Files that two write at once, on a full disk, under names that are none; and old ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mpcore as mp
from mpcore import CheckpointError
from mpcore.checkpoint import weights_file
from mpcore.checkpoint.weights_file import load_run, weights_path
from mpcore_numpy import SGD, Model

pytestmark = pytest.mark.backend("numpy")  # the files know no framework


def prepared(value: float = 1.0, size: int = 12) -> mp.Amp:
    model = Model({"fc": "linear"}, {"fc.weight": np.full((size // 4, 4), value, "f4")})
    return mp.prepare(model, SGD(model.params, 0.1), "model_bfloat16, master=split")


def value_of(path: Path) -> float:
    """Return the value of all weights, after the load has checked the pair."""
    saved = load_run(path)
    assert saved.weights is not None
    (array,) = saved.weights.arrays.values()
    assert (array == array.flat[0]).all()
    return float(array.flat[0])


WRITER = """
import sys
import numpy as np
import mpcore as mp
from mpcore_numpy import SGD, Model
path, value, rounds = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
model = Model({"fc": "linear"}, {"fc.weight": np.full((500, 40), value, "f4")})
amp = mp.prepare(model, SGD(model.params, 0.1), "model_bfloat16, master=split")
print("ready", flush=True)
sys.stdin.readline()
for _ in range(rounds):
    amp.save(path, weights=True)
"""


def test_two_writers_leave_a_pair_that_loads_at_every_moment(tmp_path: Path) -> None:
    path = tmp_path / "run.amp"
    prepared(1.0, 20000).save(path, weights=True)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, path, str(value), "60"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for value in (2.0, 3.0)
    ]
    seen: set[float] = set()
    try:
        _watch(path, writers, seen)
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert value_of(path) in (2.0, 3.0)
    assert {2.0, 3.0} <= seen <= {1.0, 2.0, 3.0}
    left = [place for place in tmp_path.iterdir() if place not in (path, weights_path(path))]
    for place in left:  # of a writer that the other overtook; an hour later they go
        os.utime(place, (0, 0))
    prepared(4.0).save(path, weights=True)
    assert sorted(tmp_path.iterdir()) == sorted([path, weights_path(path)])


def _watch(path: Path, writers: list[subprocess.Popen[str]], seen: set[float]) -> None:
    """Read all the time while both write, until they have ended."""
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    while any(writer.poll() is None for writer in writers):
        seen.add(value_of(path))
    assert [writer.returncode for writer in writers] == [0, 0]


def test_interleaved_writers_leave_the_pair_of_the_last(tmp_path, monkeypatch) -> None:
    """The order that left a pair of two saves before: weights, weights, state, state."""
    path = tmp_path / "run.amp"
    one, two = prepared(1.0), prepared(2.0)
    one.save(path, weights=True)
    real = weights_file.save_state

    def overtaken(*args):
        monkeypatch.setattr(weights_file, "save_state", real)
        two.save(path, weights=True)
        real(*args)

    monkeypatch.setattr(weights_file, "save_state", overtaken)
    one.save(path, weights=True)
    assert value_of(path) == 1.0
    one.save(path, weights=True)
    assert value_of(path) == 1.0


def test_a_pair_that_was_saved_by_older_versions_loads_and_is_cleaned_up(tmp_path) -> None:
    path, old = tmp_path / "run.amp", tmp_path / "run.amp.safetensors"
    amp = prepared(2.0)
    amp.save(path, weights=True)
    saved = load_run(path)
    assert saved.weights is not None
    state = saved.checkpoint
    state = type(state)(state.policy, state.rule, state.state, 0, state.weights)  # no token
    facts = {
        "format": "mpcore-weights", "version": "1", "names": "layers", "backend": "numpy",
        "policy": str(state.policy), "state": state.to_text(), "replaces": "",
    }  # fmt: skip
    place = weights_path(path)
    save_file(load_file(place), old, facts)
    place.unlink()
    path.write_text(state.to_text())
    assert "weights_file" not in path.read_text()
    assert value_of(path) == 2.0
    prepared(3.0).save(path, weights=True)
    assert value_of(path) == 3.0
    assert not old.exists()


def test_a_full_disk_is_told_in_one_line_and_the_old_pair_stays(tmp_path: Path) -> None:
    """A limit on the size of files, which the system enforces as a full disk is."""
    path = tmp_path / "run.amp"
    prepared(2.0).save(path, weights=True)
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        + WRITER.replace('print("ready", flush=True)\nsys.stdin.readline()\n', "")
    )
    child = subprocess.run(
        [sys.executable, "-c", code, path, "3.0", "1"], capture_output=True, text=True, check=False
    )
    told = child.stderr.splitlines()[-1]
    assert told.startswith("mpcore.errors.CheckpointError: ")
    assert "run.amp." in told
    assert value_of(path) == 2.0
    assert len(list(tmp_path.iterdir())) == 2


PATHS = {
    "None": (None, "must be a text or a pathlib.Path, got NoneType None"),
    "int": (3, "got int 3"),
    "bytes": (b"run.amp", r"got bytes b'run\.amp'; use os\.fsdecode"),
    "NUL": ("run\0.amp", "must not hold a NUL character"),
    "empty": ("", "must be a regular file, got a folder|holds something else"),
    "long": ("x" * 300, "File name too long"),
    "folder": (".", "must be a regular file, got a folder|holds something else"),
    "missing": ("none/run.amp", "No such file"),
}


@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_is_none_is_told_in_one_line(tmp_path, monkeypatch, name) -> None:
    monkeypatch.chdir(tmp_path)
    path, rule = PATHS[name]
    amp = prepared()
    calls = (
        lambda: amp.save(path),
        lambda: amp.save(path, weights=True),
        lambda: amp.load(path),
        lambda: amp.load(path, weights=False),
    )
    for call in calls:
        with pytest.raises(CheckpointError, match=rule) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_names_with_dots_and_links_keep_their_pair(tmp_path: Path) -> None:
    for name in ("run..amp", ".amp", "run"):
        prepared(2.0).save(tmp_path / name, weights=True)
        assert value_of(tmp_path / name) == 2.0


@pytest.mark.parametrize("path", [None, 3, b"x", "x\0y"])
def test_other_files_of_ours_say_it_too(path) -> None:
    from mpcore.tools.convert.run import convert
    from mpcore.tools.diagnosis.record import load_post_mortem
    from mpcore.tools.monitor.sinks import JsonLines

    rule = "must be a text or a pathlib.Path|must not hold a NUL"
    with pytest.raises(mp.BackendError, match=rule):
        JsonLines(path)
    for call in (load_post_mortem, lambda p: convert(p, "y"), lambda p: convert("y", p)):
        with pytest.raises(CheckpointError, match=rule):
            call(path)
