"""The story of the graph in examples/graph, from the picture to a file that is loaded elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.backend("tensorflow")
pytest.importorskip("tensorflow")

from graph_story import told  # noqa: E402


def test_the_story_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told("story_keras", tmp_path, monkeypatch)
    assert found["losses"][-1] < found["losses"][0]
    compute = found["planned"].compute
    assert compute["softmax"] == compute["head/linear"] == "float32"
    assert compute["q/linear"] == compute["conv/conv2d"] == "bfloat16"
    assert ("softmax", ("float32",)) in found["ran"]
    assert 'data-name="g0-softmax"' in (tmp_path / "graph.html").read_text(encoding="utf-8")
    assert found["folded"] < 1e-5
    assert found["casts"] > 0
    assert 0 < found["elsewhere"] < 0.02
    assert found["elsewhere"] == pytest.approx(found["difference"], abs=1e-4)
