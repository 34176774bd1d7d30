"""Words of ``torch.save`` that say how things are pickled: nothing is."""

from __future__ import annotations

from .ports import loaded, ported

SCRIPT = """
import torch
path = {path!r}
state = {{"step": 3, "weight": torch.full((2,), 0.5)}}
if torch.__version__ >= "1.4":
    torch.save(state, path, _use_new_zipfile_serialization=False)
else:
    torch.save(state, path)
torch.save(obj={{"it": 1, **torch.load(path)}}, f=path, pickle_protocol=4)
def on_master(*args, **kwargs):
    torch.save(*args, **kwargs)
on_master({{"it": 1, **torch.load(path)}}, path, pickle_protocol=3)
back = torch.load(path, map_location="cpu")
made = [back["step"], back["it"], back["weight"].sum().item()]
"""


def test_they_are_left_out(tmp_path):
    found = ported(SCRIPT.format(path=str(tmp_path / "state.pt")))
    assert loaded(found.text, tmp_path)["made"] == [3, 1, 1.0]
