"""Names of torch that are no arithmetic, and that scripts ask for: beside torch."""

from __future__ import annotations

from .ports import beside, loaded, ported


def test_what_a_process_and_a_region_say(tmp_path):
    script = """
import torch
import torch.multiprocessing as mp
from torch.nn.modules.utils import _pair, _single, _triple, _ntuple
made = []
made.append(list(_pair(3)) + list(_pair((1, 2))) + list(_triple(2)) + list(_single(4)))
made.append(list(_ntuple(5)(1)))
made.append(torch.is_autocast_enabled())
made.append(torch.onnx.is_in_onnx_export())
made.append(mp.get_start_method(allow_none=True) is None or "fork" in mp.get_all_start_methods())
made.append(mp.cpu_count())
"""
    found = beside(script, tmp_path)
    assert not [edit for edit in found.edits if edit.kind == "refused"]


def test_a_region_knows_whether_it_is_open(tmp_path):
    script = """
import torch
from torch.cuda.amp import autocast
made = []
def asked():
    made.append([torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype() == torch.float16])
asked()
with autocast():
    asked()
    with autocast(enabled=False):
        asked()
    asked()
"""
    made = loaded(ported(script).text, tmp_path)["made"]
    assert made == [[False, True], [True, True], [False, True], [True, True]]


def test_names_of_old_torch(tmp_path):
    script = """
import torch
try:
    from torch._six import string_classes, int_classes
except ImportError:
    string_classes, int_classes = (str, bytes), int
from torch._utils import _accumulate
made = []
made.append([isinstance("a", string_classes), isinstance(1, int_classes)])
made.append(list(_accumulate([1, 2, 3])))
"""
    made = loaded(ported(script).text, tmp_path)["made"]
    assert made == [[True, True], [1, 3, 6]]


def test_functions_by_their_other_names(tmp_path):
    beside(
        """
import torch
a = torch.tensor([0.1, 0.5, -0.3])
made = [torch.arccos(a), torch.arcsin(a), torch.arctan(a), torch.arctan2(a, a + 1)]
made += [torch.concatenate([a, a]), torch.arcsinh(a), torch.arctanh(a)]
""",
        tmp_path,
    )


def test_pools_over_volumes_are_layers(tmp_path):
    beside(
        """
import torch
from torch import nn
x = torch.cos(torch.arange(2 * 2 * 4 * 4 * 4).float()).view(2, 2, 4, 4, 4)
net = nn.Sequential(nn.MaxPool3d((1, 2, 2)), nn.AvgPool3d(2, stride=1), nn.AdaptiveAvgPool3d(1))
made = [net(x), nn.MaxPool3d(3, stride=2, padding=1)(x[0]), nn.Unfold(2, stride=2)(x[:, :, 0])]
made.append(nn.TripletMarginLoss(margin=0.5)(x[0, 0, 0], x[0, 0, 1], x[0, 0, 2]))
""",
        tmp_path,
    )
