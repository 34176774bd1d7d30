"""The story of the graph in examples/graph, from the picture to a file that is loaded elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.backend("torch")
pytest.importorskip("torch")

from graph_story import told  # noqa: E402


def test_the_story_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told("story_torch", tmp_path, monkeypatch)
    assert found["equal"], "by=graph must give the bits of autocast"
    compute = found["planned"].compute
    assert compute["softmax"] == compute["head/linear"] == "float32"
    assert compute["q/linear"] == compute["conv/conv2d"] == "bfloat16"
    assert found["agreement"] == 1
    assert 'data-name="g0-softmax"' in (tmp_path / "graph.html").read_text(encoding="utf-8")
    assert found["folded"] < 1e-6
    assert found["casts"] > 0
    assert 0 < found["elsewhere"] < 0.02
    assert found["elsewhere"] == pytest.approx(found["difference"], abs=1e-5)
