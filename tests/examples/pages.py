"""The code blocks of the pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(page: str, section: str = "") -> str:
    """Return the Python blocks of a page, or of one section of it, as one script."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if section:
        text = re.split(rf"^## {re.escape(section)}$", text, flags=re.M)[1]
        text = re.split(r"^## ", text, flags=re.M)[0]
    found = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert found, (page, section)
    return "\n".join(found)
