"""The story of the graph in examples/graph, from the picture to a file that is loaded elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.backend("mindspore")
pytest.importorskip("mindspore")

from graph_story import told  # noqa: E402


@pytest.mark.day  # from a plan to a file: what each part alone leaves open
def test_the_story_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = told("story_mindspore", tmp_path, monkeypatch)
    assert found["losses"][-1] < found["losses"][0]
    compute = found["planned"].compute
    assert compute["softmax"] == compute["head/linear"] == "float32"
    assert compute["q/linear"] == compute["conv/conv2d"] == "float16"
    assert ("Softmax", ("float32",)) in found["ran"]
    assert ("Conv2D", ("float16",)) in found["ran"]
    assert 'data-name="g0-softmax"' in (tmp_path / "graph.html").read_text(encoding="utf-8")
    assert found["folded"] < 1e-5
    assert found["casts"] > 0
    assert 0 < found["elsewhere"] < 0.01
    assert found["elsewhere"] == pytest.approx(found["difference"], abs=1e-4)
