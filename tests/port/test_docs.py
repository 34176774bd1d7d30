"""The tables of docs/reference/porting.md are those of the facts."""

from __future__ import annotations

from pathlib import Path

from mpcore_port import runtime_page
from mpcore_port.docs import renewed

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "porting.md"


def test_tables_of_the_page_are_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page, "run python -m mpcore_port.docs docs/reference/porting.md"
    assert page.count("made by python -m mpcore_port.docs") == 3


def test_a_stale_table_is_renewed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    stale = page.replace("| `torch.npu.Event` |", "| `torch.npu.Evnt` |")
    assert stale != page
    assert renewed(stale) == page


def test_the_page_of_the_runtime_is_current() -> None:
    here = Path(__file__).parents[2] / "docs" / "reference" / "port-runtime.md"
    assert here.read_text("utf-8") == runtime_page.page(), (
        "python -m mpcore_port.runtime_page " + str(here)
    )
    assert all(meaning for names in runtime_page.surface().values() for meaning in names.values())
