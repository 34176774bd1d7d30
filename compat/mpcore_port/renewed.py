"""Scripts of Python before 3.7: ``x.cuda(async=True)`` does not parse since."""

from __future__ import annotations

import io
import re
import tokenize

__all__ = ["WHY", "renewed"]

WHY = "`async` is a word of Python itself since 3.7; torch calls the argument non_blocking"
_OLD = re.compile(r"\basync\s*=(?!=)")


def renewed(text: str) -> tuple[str, tuple[int, ...]]:
    """Return a script with ``non_blocking=`` for the argument ``async=``, and the lines of it.

    Strings and comments stay. A text that has no such argument, or cannot be cut into words, comes
    back as it was.
    """
    if not _OLD.search(text):
        return text, ()
    lines = text.splitlines(keepends=True)
    places = _places(text)
    for row, column in reversed(places):
        line = lines[row - 1]
        lines[row - 1] = f"{line[:column]}non_blocking{line[column + len('async') :]}"
    return (
        ("".join(lines), tuple(dict.fromkeys(row for row, _ in places))) if places else (text, ())
    )


def _places(text: str) -> list[tuple[int, int]]:
    """Return row and column of each keyword ``async`` in brackets."""
    found: list[tuple[int, int]] = []
    try:
        words = [
            word
            for word in tokenize.generate_tokens(io.StringIO(text).readline)
            if word.type not in (tokenize.NL, tokenize.COMMENT)
        ]
    except (tokenize.TokenError, SyntaxError):
        return found
    for before, word, behind in zip(words, words[1:], words[2:], strict=False):
        if word.string == "async" and before.string in ("(", ",") and behind.string == "=":
            found.append(word.start)
    return found
