"""``functools.partial`` of a scaler: NPU's takes no device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore_port.engine import port_tree
from mpcore_port.source import walk
from mpcore_port.targets import Options, load_target

if TYPE_CHECKING:
    from pathlib import Path

_FORMS = {
    'functools.partial(torch.amp.GradScaler, device="cuda")': "()",
    'functools.partial(torch.amp.GradScaler, "cuda", 2.0)': "(init_scale=2.0)",
    "functools.partial(torch.amp.GradScaler, device=d, enabled=on)": "(enabled=on)",
    "functools.partial(torch.cuda.amp.GradScaler, 2.0)": "(2.0)",
}


@pytest.mark.parametrize("form", _FORMS)
def test_the_device_goes(form: str, tmp_path: Path) -> None:
    text = f"import functools\nimport torch\nd, on = 'cuda', True\nscaler = {form}()\n"
    (tmp_path / "t.py").write_text(text, encoding="utf-8")
    result = port_tree(walk(tmp_path / "t.py"), load_target("torch_npu"), Options())
    last = result.files[0].text.splitlines()[-1]
    given = _FORMS[form].strip("()")
    inside = f"torch.npu.amp.GradScaler, {given}" if given else "torch.npu.amp.GradScaler"
    assert last == f"scaler = functools.partial({inside})()"
