"""What reads and writes a framework's own files: the required part, and what some have besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["Files", "OpensModels", "ReadsFiles", "WritesContent"]


class Files(Protocol):
    """Files of one framework; a module will do."""

    FORMS: tuple[str, ...]
    """Ends of the names of files that ``write_file`` writes."""

    def put_arrays(
        self, model: Any, arrays: Mapping[str, npt.NDArray[Any]]
    ) -> tuple[list[str], list[str]]:
        """Load arrays by the model's own names; return the names missing, and those left over."""
        ...

    def write_file(self, model: Any, path: Path) -> None:
        """Write the weights of a model as its framework does."""
        ...


@runtime_checkable
class ReadsFiles(Protocol):
    """Files that can be read without a model: torch's and MindSpore's."""

    def read_file(self, path: Path, notes: list[str]) -> Any:
        """Return what a file holds, tensors as arrays; ``notes`` gets what was left out."""
        ...


@runtime_checkable
class OpensModels(Protocol):
    """Files that only a model reads, or that hold one: Keras'."""

    def open_model(self, path: Path, model: Any | None) -> Any:
        """Return ``model`` with a file's weights, or the model that the file holds."""
        ...


@runtime_checkable
class WritesContent(Protocol):
    """Files of nested content, with no model: torch's."""

    def write_content(self, content: Any, path: Path) -> None:
        """Write arrays in dicts and lists as the framework's tensors."""
        ...
