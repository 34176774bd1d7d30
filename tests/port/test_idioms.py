"""What real scripts do is handled, or refused by name; and docs/porting.md says which."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

from mpcore_port.engine import Ported, port_text
from mpcore_port.reading import read
from mpcore_port.scan import scan
from mpcore_port.targets import load_target

from .idioms import IDIOMS, NAMES

PAGE = Path(__file__).parents[2] / "docs" / "porting.md"


def _left(done: Ported, target: str) -> set[str]:
    """Return what of CUDA, or of torch, is left in a port outside of texts and comments."""
    if target == "mindspore":
        return set(scan(read(done.text)).torch_names)
    tokens = tokenize.generate_tokens(io.StringIO(done.text).readline)
    texts = (tokenize.NAME, tokenize.STRING)
    return {t.string for t in tokens if t.type in texts and re.search(r"\b(cuda|nccl)\b", t.string)}


def _refused(done: Ported) -> list[str]:
    assert all(edit.reason for edit in done.edits)
    return [edit.old for edit in done.edits if edit.kind == "refused"]


@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
@pytest.mark.parametrize("idiom", IDIOMS)
def test_idiom_is_handled_or_refused_by_name(idiom: str, target: str) -> None:
    _, code, *words = IDIOMS[idiom]
    word = words[target == "mindspore"]
    done = port_text(code, load_target(target))
    assert not done.failures
    compile(done.text, idiom, "exec")
    assert not _left(done, target)
    refused = _refused(done)
    assert all(word and word in old for old in refused), refused
    if target == "torch_npu":
        assert bool(refused) == bool(word)
    assert done.text != code or target == "torch_npu"


@pytest.mark.parametrize("target", ["torch_npu", "mindspore"])
def test_every_name_of_the_survey_is_mapped_or_refused(target: str) -> None:
    found = load_target(target)
    rows = {row.name for row in found.apis()}
    for name in NAMES:
        done = port_text(f"import torch\n\nx = {name}\n", found)
        assert not _left(done, target), name
        assert not done.failures
        if target == "mindspore" or name.startswith("torch.cuda."):
            assert any(edit.line == 3 for edit in done.edits), name
        elif name in rows:
            called = port_text(f"import torch\n\n{name}(1)\n", found)
            edits = [*done.edits, *called.edits]
            assert any(edit.old.startswith(name) for edit in edits), name
        else:  # it does not depend on the device; torch_npu may not have listed it
            assert {edit.kind for edit in done.edits} <= {"unproven"}, name


def test_the_page_says_how_many_and_which() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    at_least = min(files for files, *_ in IDIOMS.values())
    assert at_least == 3
    assert f"{len(IDIOMS)} idioms and {len(NAMES)} names of torch" in page
    for place, target in ((2, "torch_npu"), (3, "MindSpore")):
        named = re.search(rf"refused by name on {target}: (.*?)[.;] ", page)
        assert named is not None
        listed = {word.strip("` ") for word in named[1].split(",")}
        assert listed - {"none"} == {row[place] for row in IDIOMS.values() if row[place]}
