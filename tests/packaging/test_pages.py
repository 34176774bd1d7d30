"""Pages are drawn as they are meant, by GitHub and by the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_fence_names_a_language_and_nothing_else(page: Path) -> None:
    """The site takes a fence with two words for text, and the rest of the page for code."""
    fences = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), re.M)
    assert len(fences) % 2 == 0
    assert all(re.fullmatch(r"\w*", opened) for opened in fences[::2]), fences
    assert not any(fences[1::2]), fences
