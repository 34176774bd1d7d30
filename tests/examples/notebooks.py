"""Run notebooks and keep what they print.

python tests/examples/notebooks.py examples/notebooks/*.ipynb
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

SECONDS = 900  # for one cell


def executed(path: Path, folder: Path, **instead: str) -> nbformat.NotebookNode:
    """Return a notebook as it is after it ran in ``folder``.

    Args:
        path: the notebook.
        folder: where its kernel works.
        instead: what stands in its cells, and what is to stand there.

    Raises:
        ValueError: no cell has what is to be replaced.
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    for old, new in instead.items():
        if not any(old in cell.source for cell in notebook.cells):
            msg = f"no cell of {path.name} has {old!r}"
            raise ValueError(msg)
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=SECONDS, resources=resources, coalesce_streams=True)
    client.execute()
    for cell in notebook.cells:
        cell.metadata = {}  # when it ran: another one each time
        if cell.cell_type == "code":  # what frameworks say of the machine is no part of the page
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    return notebook


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        nbformat.write(executed(path, path.parent), path)
        print(path)


if __name__ == "__main__":
    main()
