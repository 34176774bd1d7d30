"""Inputs and outputs that no port can do anything with: a clear word, and nothing half-written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpcore_port.command import port
from mpcore_port.engine import port_tree
from mpcore_port.errors import PortError
from mpcore_port.source import Source, Unread, read_source, walk
from mpcore_port.targets import Options, load_target

GOOD = 'import torch\n\nx = torch.ones(2, device="cuda")\n'
PORTED = GOOD.replace("import torch\n", "import torch\nimport torch_npu\n").replace("cuda", "npu")


def _tree(folder: Path, **files: bytes | str) -> Path:
    for name, data in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def _seen(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        pytest.param(b"x = 1\nprint 'hello'\n", 2, "Python 2", id="print"),
        pytest.param(b"try:\n    f()\nexcept E, e:\n    pass\n", 3, "Python 2", id="except"),
        # an example of Python 2 in a text of a file that is broken elsewhere
        pytest.param(b'"""\nprint 1\n"""\nx = (\n', 4, "broken Python", id="in a text"),
        pytest.param(b"def f(:\n    pass\n", 1, "broken Python", id="syntax"),
        pytest.param(b"if x:\n\ty = 1\n        z = 2\n", 3, "broken Python", id="tabs"),
        pytest.param(b"x = 1\ny = '\xe9'\n", 2, "byte 0xe9 is not utf-8", id="latin-1"),
        pytest.param(b"# coding: klingon\nx = 1\n", 0, "no Python source", id="encoding"),
        pytest.param(b"# coding: rot13\nk = 1\n", 1, "'rot13' is no encoding of text", id="rot13"),
        pytest.param(b"# coding: hex\n00\n", 1, "'hex' is no encoding of text", id="hex"),
        pytest.param(
            b"# -*- coding: punycode -*-\n" + b"x = 1\n" * 5000,
            1,
            "'punycode' is no encoding of text",
            id="punycode",
        ),
        pytest.param(b"x = 1\x00\n", 0, "zero bytes", id="zero"),
        pytest.param(b"(" * 5000 + b")" * 5000, 1, "", id="deep"),
    ],
)
def test_file_that_is_no_python_3_says_where_and_why(
    tmp_path: Path, data: bytes, line: int, reason: str
) -> None:
    (tmp_path / "a.py").write_bytes(data)
    found = read_source(tmp_path / "a.py", "a.py")
    assert isinstance(found, Unread)
    assert reason in found.reason
    assert found.line == line


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(GOOD.encode(), id="plain"),
        pytest.param(b"\xef\xbb\xbf" + GOOD.encode(), id="mark"),
        pytest.param(GOOD.replace("\n", "\r\n").encode(), id="crlf"),
        pytest.param(b"# -*- coding: latin-1 -*-\n# \xe9\n" + GOOD.encode(), id="latin-1"),
        pytest.param(b"#!/bin/env python\n" + GOOD.rstrip("\n").encode(), id="no last newline"),
        pytest.param(GOOD.encode() + b"\n\n\n   \n# \x0c in a comment\n", id="white end"),
        pytest.param(GOOD.encode() + b"\n\t \n\n# end", id="comment end"),
        pytest.param(GOOD.replace("\n\n", "\n\r\n").encode(), id="mixed"),
    ],
)
def test_bytes_outside_the_sites_are_kept(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.py").write_bytes(data)
    source = read_source(tmp_path / "a.py", "a.py")
    assert isinstance(source, Source)
    (done,) = port_tree(walk(tmp_path / "a.py"), load_target("torch_npu"), Options()).files
    end = b"\r\n" if data.count(b"\r\n") > 1 else b"\n"
    expected = data.replace(
        b"import torch" + end, b"import torch" + end + b"import torch_npu" + end
    )
    assert source.encode(done.text) == expected.replace(b"cuda", b"npu")


def test_folder_is_written_whole_with_everything_that_goes_along(tmp_path: Path) -> None:
    source = _tree(
        tmp_path / "in",
        main_py=GOOD,
        lib__data_py=GOOD,
        lib__old_py="print 'two'\n",
        notes="backend: nccl\n",
        book=b"",
        _git__config="x",
    )
    (source / "book").rename(source / "book.ipynb")
    (source / "_git").rename(source / ".git")
    (source / "loop").symlink_to(source, target_is_directory=True)
    (source / "gone.py").symlink_to(source / "nowhere.py")
    before = _seen(source / "lib")
    assert port(source, to="torch_npu", output=tmp_path / "out", report="text,json,html") == 1
    out = _seen(tmp_path / "out")
    assert out["main.py"] == out["lib/data.py"] == PORTED.encode()
    assert out["lib/old.py"] == b"print 'two'\n"
    assert out["notes"] == b"backend: nccl\n"
    said = out["mpcore-port.txt"].decode()
    for part in (
        "notes:1: not converted: copied as it is; it says 'nccl'",
        "lib/old.py:1: not converted: Python 2",
        "loop: not converted: a link into a loop",
        "book.ipynb: not converted: no notebook: broken JSON",
        "gone.py: not converted: a link to nowhere",
    ):
        assert part in said
    assert ".git/config" not in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    assert _seen(source / "lib") == before


@pytest.mark.parametrize(
    ("path", "output", "words"),
    [
        pytest.param("in", "in/out", "must lie neither in the input", id="inside"),
        pytest.param("in", ".", "must lie neither in the input", id="around"),
        pytest.param("in", "in", "must not be the input itself", id="same"),
        pytest.param("in/main.py", "in/main.py", "must not be the input itself", id="same file"),
        pytest.param("in", "there", "is there already; choose another", id="exists"),
        pytest.param("in/main.py", "new.py", "new.mpcore-port.json' is there", id="report exists"),
        pytest.param("in", "file", "must be a folder for a folder", id="file"),
        pytest.param("in", "file/out", "which is a file", id="below a file"),
        pytest.param("nothing", "out", "is not there", id="no input"),
        pytest.param("empty", "out", "holds none", id="empty"),
        pytest.param("in/notes.txt", "out", "must be a Python file, a notebook or", id="text"),
        pytest.param("in/book.ipynb", "out", "no notebook: its JSON has no", id="notebook"),
        pytest.param("in/two.py", "out", "two.py:1: Python 2", id="python 2"),
        pytest.param("in/feed.py", "out", "feed.py:4: the form feed cannot be kept", id="feed"),
    ],
)
def test_wrong_input_or_output_is_refused_and_nothing_is_written(
    tmp_path: Path, path: str, output: str, words: str
) -> None:
    _tree(tmp_path / "in", main_py=GOOD, two_py="print 'two'\n", feed_py=f"{GOOD}\x0cy = 1\n")
    (tmp_path / "in" / "notes.txt").write_text("x")
    (tmp_path / "in" / "book.ipynb").write_text("{}")
    (tmp_path / "there").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "new.mpcore-port.json").write_text("mine")
    before = _seen(tmp_path)
    with pytest.raises(PortError) as error:
        port(tmp_path / path, to="torch_npu", output=tmp_path / output)
    assert words in str(error.value)
    assert _seen(tmp_path) == before


def test_force_replaces_a_port_and_nothing_else(tmp_path: Path) -> None:
    _tree(tmp_path / "in", main_py=GOOD)
    _tree(tmp_path / "mine", letter="dear")
    port(tmp_path / "in", to="torch_npu", output=tmp_path / "out")
    (tmp_path / "out" / "left.py").write_text("from an earlier port")
    port(tmp_path / "in", to="torch_npu", output=tmp_path / "out", force=True)
    assert "left.py" not in _seen(tmp_path / "out")
    with pytest.raises(PortError, match=r"holds no mpcore-port\.json"):
        port(tmp_path / "in", to="torch_npu", output=tmp_path / "mine", force=True)
    assert _seen(tmp_path / "mine") == {"letter": b"dear"}


def test_failure_while_writing_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tree(tmp_path / "in", a_py=GOOD, b_py=GOOD)
    port(tmp_path / "in", to="torch_npu", output=tmp_path / "out")
    before = _seen(tmp_path)
    moves = []

    def full(source: object, target: object) -> None:
        moves.append(target)
        if len(moves) == 2:  # the new folder in place of the old one, which has been moved away
            raise OSError(28, "No space left on device")
        os.rename(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(PortError, match="No space left on device; nothing was changed"):
        port(tmp_path / "in", to="torch_npu", output=tmp_path / "out", force=True)
    assert _seen(tmp_path) == before


def test_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tree(tmp_path / "in", a_py=GOOD)
    real = os.access
    shut = tmp_path / "shut"
    shut.mkdir()

    def access(path: object, mode: int) -> bool:  # also for root, who may write everywhere
        return False if Path(str(path)) == shut else real(path, mode)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "access", access)
    with pytest.raises(PortError, match=r"cannot be written: .*shut' is read-only"):
        port(tmp_path / "in", to="torch_npu", output=shut / "out")
    assert not list(shut.iterdir())


def test_executable_stays_executable(tmp_path: Path) -> None:
    _tree(tmp_path / "in", a_py=GOOD, b_py=GOOD)
    (tmp_path / "in" / "a.py").chmod(0o755)
    port(tmp_path / "in", to="torch_npu", output=tmp_path / "out")
    port(tmp_path / "in" / "a.py", to="torch_npu", output=tmp_path / "one.py", report="")
    modes = [
        path.stat().st_mode & 0o100 for path in (tmp_path / "out" / "a.py", tmp_path / "one.py")
    ]
    assert all(modes)
    assert not (tmp_path / "out" / "b.py").stat().st_mode & 0o100


def test_file_that_breaks_the_porter_does_not_take_the_others_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpcore_port import engine

    def breaks(rules: object, source: Source, *rest: Any) -> Any:
        if source.path == "a.py":
            msg = "maximum recursion depth exceeded"
            raise RecursionError(msg)
        return real(rules, source, *rest)  # type: ignore[arg-type]

    real = engine.apply_pass
    monkeypatch.setattr(engine, "apply_pass", breaks)
    _tree(tmp_path / "in", a_py=GOOD, b_py=GOOD)
    assert port(tmp_path / "in", to="torch_npu", output=tmp_path / "out", report="text") == 1
    out = _seen(tmp_path / "out")
    assert (out["a.py"], out["b.py"]) == (GOOD.encode(), PORTED.encode())
    assert "a.py: not converted: the porter gave up on it" in out["mpcore-port.txt"].decode()


def test_very_long_expression_is_ported(tmp_path: Path) -> None:
    long = GOOD + "y = " + " + ".join(["x"] * 150) + "\n"
    _tree(tmp_path / "in", a_py=long)
    port(tmp_path / "in", to="torch_npu", output=tmp_path / "out")
    assert _seen(tmp_path / "out")["a.py"] == long.replace(GOOD, PORTED).encode()


def test_many_empty_lines_behind_a_jump_cost_no_more_than_others(tmp_path: Path) -> None:
    jump = "for x in data:\n    if x is None:\n        continue\n" + "\n" * 400
    loop = "    loss = model(x).mean()\n    loss.backward()\n    optimizer.step()\n"
    path = _tree(tmp_path, train_py=f"import torch\n{jump}{loop}") / "train.py"
    code = "import sys; from mpcore.cli import main; main()"
    words = ("port", str(path), "--to", "mindspore", "--no-verify", "-o", str(tmp_path / "port.py"))
    done = subprocess.run([sys.executable, "-c", code, *words], timeout=60, check=False)
    assert done.returncode in (0, 1)
    assert (tmp_path / "port.py").read_text().count("\n") > 400
