"""What an index shows: README with links that hold away from the repository, and its address.

The repository's address is no fact of this tree. Whoever releases gives it:
``MPCORE_REPOSITORY=https://... python -m build``; without it links become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:)([^)#]+)((?:#[^)]*)?)\)")


def absolute(text: str, repository: str, version: str) -> str:
    """Return Markdown whose relative links lead to ``repository``; to nowhere if it is empty."""

    def link(found: re.Match[str]) -> str:
        image, words, path, place = found.groups()
        if not repository:
            return "" if image else f"{words} ({path})"
        kind = "raw" if image else "blob"
        return f"{image}[{words}]({repository}/{kind}/v{version}/{path}{place})"

    return _LINK.sub(link, text)


class ReleaseMetadata(MetadataHookInterface):
    """Fills in ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what pyproject.toml leaves open."""
        root = Path(self.root)
        repository = os.environ.get("MPCORE_REPOSITORY", "").rstrip("/")
        versions = (root / "mpcore/_lib/versions.py").read_text(encoding="utf-8")
        version = re.search(r'^__version__ = "(.*)"$', versions, re.MULTILINE)[1]
        text = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, repository, version),
        }
        if repository:
            pages = {"Changelog": "CHANGELOG.md", "Documentation": "docs/index.md"}
            metadata["urls"] = {
                "Repository": repository,
                "Issues": f"{repository}/issues",
                **{k: f"{repository}/blob/v{version}/{page}" for k, page in pages.items()},
            }
