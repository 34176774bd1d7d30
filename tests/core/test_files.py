"""Files that are whole at every moment; see also the tests of checkpoints and reports."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mpcore._lib.files import is_left_over, write_file, write_files, write_text


def test_a_link_and_the_mode_of_the_old_file_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    write_text(link, "new\n")
    assert link.is_symlink()
    assert real.read_bytes() == b"new\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def fill(beside: Path) -> None:
        beside.write_text("half")
        assert is_left_over(beside)
        msg = "planted"
        raise OSError(msg)

    with pytest.raises(OSError, match="planted"):
        write_file(path, fill)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_several_files_appear_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(target).name == "b":
            msg = "planted"
            raise OSError(msg)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="planted"):
        write_files(tmp_path, {"a": b"new", "b": b"new"})
    assert (tmp_path / "a").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    monkeypatch.undo()
    write_files(tmp_path, {"a": b"new", "b": b"new"})
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == dict.fromkeys(
        "ab", "new"
    )
