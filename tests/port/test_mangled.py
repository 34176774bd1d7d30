"""Files and notebooks that were damaged by chance: a port, or one line why not; no traceback."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target

HERE = Path(__file__).parent
SEEDS = sorted((HERE / "scripts").glob("*.py")) + sorted(HERE.glob("cases/*/*/before.py"))
TARGETS = {
    "torch_npu": ("torch_npu", Options()),
    "portable": ("torch_npu", Options(portable=True)),
    "mindspore": ("mindspore", Options()),
}
CODECS = ["rot13", "hex", "punycode", "utf-16", "latin-1", "idna", "utf-7", "base64", "undefined"]
TRIES = 30  # of each target; 200 of each were run by hand


def _mangled(text: str, draw: random.Random) -> bytes:
    kind = draw.choice(
        ["cut", "drop", "twice", "swap", "line", "indent", "codec", "bytes", "quote"]
    )
    words = re.findall(r"\s+|\w+|[^\w\s]", text)
    lines = text.split("\n")
    place, row = draw.randrange(len(words) - 1), draw.randrange(len(lines))
    if kind == "cut":
        return text[: draw.randrange(len(text))].encode()
    if kind == "codec":
        return f"# -*- coding: {draw.choice(CODECS)} -*-\n{text}".encode()
    if kind == "bytes":
        data = bytearray(text.encode())
        data[draw.randrange(len(data))] = draw.randrange(256)
        return bytes(data)
    if kind in ("line", "indent"):
        lines[row : row + (kind == "indent")] = [draw.choice(["  ", ""]) + lines[row]]
        return "\n".join(lines).encode()
    if kind == "quote":
        found = re.search(r"torch\.[\w.]+\(\)|\w+\.cuda\(\)", text)
        return text.replace(found[0], f'f"{{{found[0]}}}"').encode() if found else text.encode()
    if kind == "swap":
        words[place : place + 2] = reversed(words[place : place + 2])
    else:
        words[place : place + 1] = [words[place]] * (2 if kind == "twice" else 0)
    return "".join(words).encode()


def _notebook(data: bytes) -> bytes:
    cells = [
        {
            "cell_type": "code",
            "metadata": {},
            "source": part,
            "outputs": [],
            "execution_count": None,
        }
        for part in data.decode(errors="replace").split("\n\n")
    ]
    spec = {"kernelspec": {"language": "python", "name": "python3", "display_name": "x"}}
    whole = {"cells": cells, "metadata": spec, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(whole).encode()


@pytest.mark.parametrize("target", TARGETS)
def test_damaged_files_are_ported_or_named_in_one_line(tmp_path: Path, target: str) -> None:
    draw = random.Random(f"{target} 14")
    name, options = TARGETS[target]
    ported = 0
    for number in range(TRIES):
        data = _mangled(draw.choice(SEEDS).read_text(encoding="utf-8"), draw)
        path = tmp_path / f"{number}.{'ipynb' if number % 6 == 5 else 'py'}"
        path.write_bytes(_notebook(data) if path.suffix == ".ipynb" else data)
        result = port_tree(walk(path), load_target(name), options)
        assert not [u for u in result.unread if "defect" in u.reason or "\n" in u.reason]
        for file in result.files:
            ported += 1
            assert not file.failures, (number, file.failures)
            if path.suffix == ".py" and _compiles(file.source.text):
                assert _compiles(file.text), number
    assert ported > TRIES // 5


def _compiles(text: str) -> bool:
    try:
        compile(text, "x", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
