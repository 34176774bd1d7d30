"""How the tests of the report read what it wrote."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from rich.console import Console

from mpcore.tools.report.report import table, write_report
from mpcore.tools.report.result import Result

if TYPE_CHECKING:
    from pathlib import Path


class Page(HTMLParser):
    """Tags, attributes and visible text of a page; complains about tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


def shown(result: dict[str, Any], width: int) -> str:
    stream = io.StringIO()
    found = Result.from_dict(result)
    Console(file=stream, width=width, force_terminal=False).print(table(found))
    return stream.getvalue()


def page(result: dict[str, Any], folder: Path) -> Page:
    write_report(Result.from_dict(result), folder)
    return Page((folder / "report.html").read_text(encoding="utf-8"))
