"""Weights beside the state: one file that every scheme reads, whole at every moment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import mpcore as mp
from mpcore import CheckpointError
from mpcore.checkpoint.weights_file import load_run, weights_path
from mpcore_numpy import SGD, Model

SPLIT = "model_bfloat16, master=split"


def model(value: float = 1.0, rows: int = 3) -> Model:
    layers = {"fc": "linear", "norm": "norm"}
    weight = np.linspace(value, value + 1, 4 * rows, dtype=np.float32).reshape(rows, 4)
    return Model(layers, {"fc.weight": weight, "norm.weight": np.full(4, value, "f4")})


def prepared(policy: str = SPLIT, value: float = 1.0, rows: int = 3) -> mp.Amp:
    built = model(value, rows)
    return mp.prepare(built, SGD(built.params, 0.1), policy)


def assert_holds(amp: mp.Amp, value: float) -> None:
    for name, array in model(value).params.items():
        np.testing.assert_array_equal(amp.weights()[name], array)


def test_the_file_is_plain_safetensors_named_by_layer(tmp_path: Path) -> None:
    amp = prepared()
    amp.save(tmp_path / "run.amp", weights=True)
    place = weights_path(tmp_path / "run.amp")
    assert re.fullmatch(r"run\.amp\.[0-9a-f]{8}\.safetensors", place.name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.amp", place.name]
    arrays = load_file(place)
    assert sorted(arrays) == ["000|linear|fc|weight", "001|norm|norm|weight"]
    np.testing.assert_array_equal(arrays["000|linear|fc|weight"], model().params["fc.weight"])
    with safe_open(place, framework="numpy") as file:
        facts = file.metadata()
    assert (facts["format"], facts["backend"], facts["names"]) == (
        "mpcore-weights", "numpy", "layers",
    )  # fmt: skip
    assert facts["policy"] == SPLIT


def test_weights_are_taken_where_they_were_saved_with_the_state(tmp_path: Path) -> None:
    path = tmp_path / "run.amp"
    prepared(value=2.0).save(path, weights=True)
    amp = prepared()
    assert amp.load(path) == []
    assert_holds(amp, 2.0)
    amp = prepared()
    amp.load(path, weights=False)
    assert_holds(amp, 1.0)
    prepared(value=3.0).save(path)  # the state alone: what lies beside it is of an older run
    amp.load(path)
    assert_holds(amp, 1.0)


def test_a_float32_run_takes_them_too(tmp_path: Path) -> None:
    prepared(value=2.0).save(tmp_path / "run.amp", weights=True)
    amp = prepared("float32")
    with pytest.raises(CheckpointError, match=r"policy\.param is 'bfloat16' in the file and 'flo"):
        amp.load(tmp_path / "run.amp")
    assert_holds(amp, 1.0)
    assert any(
        "policy.master" in entry for entry in amp.load(tmp_path / "run.amp", any_policy=True)
    )
    assert_holds(amp, 2.0)


KILLED = """
import os, sys, time
import numpy as np
import mpcore as mp
from mpcore_numpy import SGD, Model
weights = {{"fc.weight": np.linspace(5, 6, 12, dtype="f4").reshape(3, 4)}}
weights["norm.weight"] = np.full(4, 5, "f4")
model = Model({{"fc": "linear", "norm": "norm"}}, weights)
amp = mp.prepare(model, SGD(model.params, 0.1), "{policy}")
amp.state = amp.state._replace(skipped_steps=7)
calls, real = [], os.{call}
def hang(*args):
    calls.append(args)
    if len(calls) == {number}:
        print("writing", flush=True)
        time.sleep(60)
    return real(*args)
os.{call} = hang
amp.save(sys.argv[1], weights=True)
"""


@pytest.mark.parametrize(
    ("call", "number", "new"),
    [
        pytest.param("replace", 1, False, id="before-the-weights"),
        pytest.param("replace", 2, False, id="between-weights-and-state"),
        pytest.param("fsync", 1, False, id="weights-not-flushed"),
        pytest.param("fsync", 3, False, id="state-not-flushed"),
        pytest.param("fsync", 4, True, id="name-not-flushed"),
    ],
)
def test_a_killed_writer_loses_nothing(tmp_path: Path, call: str, number: int, new: bool) -> None:
    path = tmp_path / "run.amp"
    prepared(value=2.0).save(path, weights=True)
    code = textwrap.dedent(KILLED.format(call=call, number=number, policy=SPLIT))
    child = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "writing\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    amp = prepared()
    amp.load(path)
    assert_holds(amp, 5.0 if new else 2.0)
    assert amp.state.skipped_steps == (7 if new else 0)  # weights and state of one moment
    prepared(value=3.0).save(path, weights=True)
    amp.load(path)
    assert_holds(amp, 3.0)


def test_the_first_save_that_was_killed_between_its_files_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.amp"
    prepared(value=2.0).save(path, weights=True)
    path.unlink()
    amp = prepared()
    amp.load(path)
    assert_holds(amp, 2.0)


# --- what is refused


def test_weights_of_another_save_are_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "run.amp", tmp_path / "other.amp"
    prepared(value=2.0).save(path, weights=True)
    prepared(value=3.0).save(other, weights=True)
    weights_path(other).replace(weights_path(path))
    message = r"must be those that were saved with run\.amp, they are of another save"
    with pytest.raises(CheckpointError, match=message):
        prepared().load(path)
    weights_path(path).replace(weights_path(other))
    prepared(value=4.0).save(other, weights=True)
    other.unlink()
    with pytest.raises(CheckpointError, match="of another save"):
        prepared().load(other)  # its state is gone, and it was not the first


def facts_of(path: Path) -> dict[str, str]:
    with safe_open(path, framework="numpy") as file:
        found: dict[str, str] = file.metadata()
    return found


def rewritten(path: Path, arrays=None, **changes: str | None) -> None:
    """Write the weights file again with other arrays or metadata."""
    facts = facts_of(path) | changes
    save_file(arrays or load_file(path), path, {k: v for k, v in facts.items() if v is not None})


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(bytes(content))


def half(path: Path) -> None:
    rewritten(path, {n: a.astype(np.float16) for n, a in load_file(path).items()})


OTHER = "cut off, or of another kind"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(cut, OTHER, id="cut"),
        pytest.param(flip, r"the digest '\w{64}', got .* changed or damaged", id="flipped"),
        pytest.param(half, "must hold float32 arrays, '000.linear.fc.weight' is F16", id="half"),
        pytest.param(lambda p: p.write_bytes(b"\x80\x02cos"), OTHER, id="pickle"),
        pytest.param(lambda p: p.write_bytes(b""), OTHER, id="empty"),
        pytest.param(lambda p: p.write_bytes(b"\xff" * 99), OTHER, id="huge"),
        pytest.param(lambda p: rewritten(p, format="pt"), "must be 'mpcore-weights'", id="other"),
        pytest.param(lambda p: rewritten(p, version="2"), "must be 1, got '2'", id="newer"),
        pytest.param(lambda p: rewritten(p, names=None), "`metadata` lacks 'names'", id="lacks"),
        pytest.param(lambda p: rewritten(p, state="{"), "must hold a JSON document", id="state"),
        pytest.param(lambda p: p.unlink(), "No such file", id="missing"),
        pytest.param(lambda p: (p.unlink(), p.mkdir()), "must be a regular file", id="folder"),
        pytest.param(lambda p: (p.unlink(), os.mkfifo(p)), "must be a regular file", id="pipe"),
    ],
)
def test_damaged_and_other_files_are_refused_and_nothing_moves(
    tmp_path: Path, change, message: str
) -> None:
    path = tmp_path / "run.amp"
    prepared(value=2.0).save(path, weights=True)
    change(weights_path(path))
    amp = prepared()
    with pytest.raises(
        CheckpointError, match=rf"run\.amp\.\w{{8}}\.safetensors: .*{message}.*weights=False"
    ):
        amp.load(path)
    assert_holds(amp, 1.0)
    amp.load(path, weights=False)


def test_weights_of_another_model_are_refused_and_nothing_moves(tmp_path: Path) -> None:
    prepared(value=2.0, rows=5).save(tmp_path / "run.amp", weights=True)
    amp = prepared()
    amp.state = amp.state._replace(skipped_steps=3)
    message = r"run\.amp\.\w{8}\.safetensors: `weights` must be those of the same arch.*\(5, 4\)"
    with pytest.raises(CheckpointError, match=message):
        amp.load(tmp_path / "run.amp")
    assert_holds(amp, 1.0)
    assert amp.state.skipped_steps == 3


@pytest.mark.parametrize("content", [b"", b"weights of a year", b"{}"])
def test_what_is_not_ours_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.amp").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"run\.amp: "):
        prepared().save(tmp_path / "run.amp", weights=True)
    assert (tmp_path / "run.amp").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["run.amp"]


def test_links_are_followed(tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to(tmp_path / "run.amp")  # to nothing yet
    for value in (2.0, 3.0):
        prepared(value=value).save(link, weights=True)
        amp = prepared()
        amp.load(link)
        assert_holds(amp, value)
    assert link.is_symlink()


def test_a_foreign_safetensors_file_stays(tmp_path: Path) -> None:
    for name in ("run.amp.safetensors", "run.amp.0123abcd.safetensors"):
        save_file({"w": np.ones(3, "f4")}, tmp_path / name)
        os.utime(tmp_path / name, (0, 0))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for value in (2.0, 3.0):
        prepared(value=value).save(tmp_path / "run.amp", weights=True)
    assert {path: path.read_bytes() for path in before} == before
    assert len(list(tmp_path.iterdir())) == 4
    amp = prepared()
    amp.load(tmp_path / "run.amp")
    assert_holds(amp, 3.0)


def test_a_failed_write_leaves_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.amp"
    prepared(value=2.0).save(path, weights=True)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        prepared(value=3.0).save(path, weights=True)
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 2
    amp = prepared()
    amp.load(path)
    assert_holds(amp, 2.0)


def test_arrays_in_no_layer_go_by_their_own_paths(tmp_path: Path) -> None:
    def odd() -> mp.Amp:
        built = model(2.0)
        built.buffers["average.fc"] = np.full(2, 9, "f4")  # of no layer
        return mp.prepare(built, SGD(built.params, 0.1), SPLIT)

    path = tmp_path / "run.amp"
    odd().save(path, weights=True)
    assert set(load_file(weights_path(path))) == {"fc.weight", "norm.weight", "average.fc"}
    amp = odd()
    amp.load_weights({name: array * 0 for name, array in amp.weights().items()})
    amp.load(path)
    assert amp.weights()["average.fc"].tolist() == [9, 9]
    rewritten(weights_path(path), names="torch", backend="torch")
    with pytest.raises(CheckpointError, match=r"they have the paths of torch .* load them there"):
        odd().load(path)


def test_noise_goes_on_where_it_was(tmp_path: Path) -> None:
    amp = prepared("model_bfloat16, master=stochastic")
    amp.optimizer_steps = 41
    amp.save(tmp_path / "run.amp")
    again = prepared("model_bfloat16, master=stochastic")
    again.load(tmp_path / "run.amp")
    assert again.optimizer_steps == load_run(tmp_path / "run.amp").checkpoint.optimizer_steps == 41
