"""Damages scripts by chance, ports them, and says what a port lost: the campaign and its test.

    python tests/port/mangle.py [TRIES] [SEED] [--write]

TRIES of each of the three targets; ``--write`` keeps the result in results/mangled.json.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target

__all__ = ["SEEDS", "TARGETS", "campaign", "mangled", "notebook", "tried"]

HERE = Path(__file__).parent
SEEDS = sorted((HERE / "scripts").glob("*.py")) + sorted(HERE.glob("cases/*/*/before.py"))
TARGETS = {
    "torch_npu": ("torch_npu", Options()),
    "portable": ("torch_npu", Options(portable=True)),
    "mindspore": ("mindspore", Options()),
}
CODECS = ["rot13", "hex", "punycode", "utf-16", "latin-1", "idna", "utf-7", "base64", "undefined"]


def mangled(text: str, draw: random.Random) -> bytes:
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


def notebook(data: bytes) -> bytes:
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


def _compiles(text: str) -> bool:
    try:
        compile(text, "x", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _sites(files: Any) -> dict[str, int]:
    """Return how many edits the lines of a file have, by the text of the line."""
    found: dict[str, int] = {}
    for file in files:
        lines = file.source.text.splitlines()
        for edit in file.edits:
            if edit.new != edit.old and 0 < edit.line <= len(lines):
                text = lines[edit.line - 1].strip()
                found[text] = found.get(text, 0) + 1
    return found


def _lost(seed: str, now: Any, before: dict[str, int]) -> list[str]:
    """Return lines that had edits in the whole file, are all still there, and have none now.

    Only where no name is bound in another way: each line but one is there as it was, and that
    one binds none.
    """
    if not now:
        return []
    old, new = seed.splitlines(), now[0].source.text.splitlines()
    gone = [line for line in old if line not in new]
    if any(re.search(r"\b(import|def|class|as|for)\b|=|\\$|[\[({:,]\s*$", line) for line in gone):
        return []
    after = _sites(now)
    changed = {line.strip() for line in gone}
    return [text for text in before if text not in changed and text not in after]


def tried(data: bytes, path: Path, target: str, seed: str) -> tuple[str, list[str]]:
    """Port one damaged file; return how it ended, and what went wrong, in words."""
    name, options = TARGETS[target]
    path.write_bytes(notebook(data) if path.suffix == ".ipynb" else data)
    made = load_target(name)
    result = port_tree(walk(path), made, options)
    wrong = [u.reason for u in result.unread if "defect" in u.reason or "\n" in u.reason]
    for file in result.files:
        wrong += file.failures
        if path.suffix == ".py" and _compiles(file.source.text) and not _compiles(file.text):
            wrong.append("the port does not compile")
    if path.suffix == ".py" and result.files and data != seed.encode():
        path.write_text(seed, encoding="utf-8")
        whole = port_tree(walk(path), made, options)
        wrong += [f"lost: {line}" for line in _lost(seed, result.files, _sites(whole.files))]
    return ("ported" if result.files else "named in one line"), wrong


def campaign(target: str, tries: int, seed: int, folder: Path) -> dict[str, Any]:
    """Return how many damaged files of one target ended how, and what went wrong."""
    draw = random.Random(f"{target} {seed}")
    ends: dict[str, int] = {}
    wrong = []
    for number in range(tries):
        text = draw.choice(SEEDS).read_text(encoding="utf-8")
        data = mangled(text, draw)
        path = folder / f"{number}.{'ipynb' if number % 6 == 5 else 'py'}"
        end, bad = tried(data, path, target, text)
        ends[end] = ends.get(end, 0) + 1
        wrong += [f"{number}: {one}" for one in bad]
    return {"tries": tries, "seed": seed, **ends, "wrong": wrong}


def main() -> int:
    """Run, print, and write if asked for."""
    given = [int(arg) for arg in sys.argv[1:] if arg.isdigit()]
    tries, seed = (*given, 200, 14)[:2] if len(given) != 1 else (given[0], 14)
    with tempfile.TemporaryDirectory() as folder:
        found = {target: campaign(target, tries, seed, Path(folder)) for target in TARGETS}
    text = json.dumps(found, indent=1)
    print(text)
    if "--write" in sys.argv:
        path = HERE / "results" / "mangled.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    return 1 if any(row["wrong"] for row in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
