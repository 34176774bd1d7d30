"""The ports in examples/port are those that the command writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpcore_port.command import port

EXAMPLE = Path(__file__).parents[2] / "examples" / "port"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("train_npu", {"to": "torch_npu"}),
        ("train_ms", {"to": "mindspore"}),
        ("train_portable", {"to": "torch_npu", "portable": True, "report": ""}),
    ],
)
def test_example_is_current(tmp_path: Path, name: str, options: dict[str, object]) -> None:
    output = tmp_path / f"{name}.py"
    port(EXAMPLE / "train.py", output=output, verify=False, **options)  # type: ignore[arg-type]
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {n: (EXAMPLE / n).read_bytes() for n in written} == written, (
        "see examples/port/README.md"
    )
