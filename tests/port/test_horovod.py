"""Scripts that train through horovod: on MindSpore in one process, on an NPU in several.

``traces/horovod.json`` holds what ``ranks/horovod_lives.py`` leaves behind with the Python files of
horovod 0.28.1, its C++ library replaced by sums of gloo: alone, and in two processes.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mpcore_compat import horovod as own
from mpcore_port.targets import load_target
from mpcore_port.torch_npu.tables import settings
from mpcore_port_runtime import horovod as alone

from .ports import FILLED, NET, beside, compare, loaded, ported

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
SCRIPT = (HERE / "ranks" / "horovod_lives.py").read_text(encoding="utf-8")
TRACES = json.loads((HERE / "traces" / "horovod.json").read_text(encoding="utf-8"))
NPU = load_target("torch_npu")
HEAD = FILLED + "import horovod.torch as hvd\nimport torch.nn.functional as F\n" + NET
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have scripts import what was compared with horovod as horovod; nobody has joined."""
    package = type(sys)("horovod")
    package.torch = own  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "horovod", package)
    monkeypatch.setitem(sys.modules, "horovod.torch", own)
    yield
    own.shutdown()
    alone.shutdown()


def test_in_one_process_mindspore_ends_where_horovod_does(tmp_path: Path) -> None:
    found = ported(SCRIPT)
    assert not [one for one in found.edits if one.kind in ("refused", "unproven")]
    made = loaded(found.text, tmp_path)["made"]
    np.testing.assert_allclose(np.array(made, float), TRACES["1"][0], rtol=1e-3, atol=2e-5)


def test_in_one_process_the_bits_are_horovods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", type(sys)("torch_npu"))
    found = ported(SCRIPT, NPU)
    assert not [one for one in found.edits if one.kind in ("refused", "unproven")]
    assert "import mpcore_compat.horovod as hvd" in found.text
    held: dict[str, Any] = {"__name__": "port"}
    exec(found.text, held)
    assert held["made"] == TRACES["1"][0]


def test_in_two_processes_the_bits_are_horovods(tmp_path: Path) -> None:
    last = f"\nimport sys, json\njson.dump(made, open(f'{tmp_path}/{{hvd.rank()}}.json', 'w'))\n"
    text = ported(SCRIPT, NPU).text.replace("import torch_npu\n", "") + last
    (tmp_path / "lives.py").write_text(text, encoding="utf-8")
    command = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(tmp_path / "lives.py")], env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    written = sorted(tmp_path.glob("*.json"))
    assert len(written) == 2, done.stderr[-3000:]
    assert [json.loads(one.read_text()) for one in written] == TRACES["2"]


MIXED = """hvd.init()
net = filled(Net())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
hvd.broadcast_parameters(net.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
x = torch.linspace(-1.0, 1.3, 12).view(4, 3)
for step in range(5):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(net(x + step), torch.ones(4, 2))
    scaler.scale(loss).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()
    made.append(loss.item())
    made.append(scaler.get_scale())
    made.append(optimizer.param_groups[0]["lr"])
state = optimizer.state_dict()
optimizer.load_state_dict(state)
made += [p.detach() for p in net.parameters()]
"""


def test_a_step_under_a_scaler_synchronizes_first(tmp_path: Path) -> None:
    found = ported(HEAD + MIXED)
    assert not [one for one in found.edits if one.kind in ("refused", "unproven")]
    compare(HEAD + MIXED, found.text, tmp_path, rtol=3e-3, atol=3e-3)


WRAPPED = """hvd.init()
net = filled(Net())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
x = torch.linspace(-1.0, 1.3, 12).view(4, 3)
def train(optimizer):
    for step in range(3):
        loss = F.mse_loss(net(x + step), torch.ones(4, 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.append(loss.item())
train(optimizer)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
train(optimizer)
made += [p.detach() for p in net.parameters()]
"""


def test_what_is_wrapped_starts_anew(tmp_path: Path) -> None:
    """horovod makes another optimizer of the groups alone: the momentum is gone."""
    found = beside(HEAD + WRAPPED, tmp_path)
    assert not [one for one in found.edits if one.kind in ("refused", "unproven")]


@pytest.mark.parametrize("name", ["HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "MS_WORKER_NUM"])
def test_several_processes_raise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "2")
    with pytest.raises(NotImplementedError, match=f"here are several .{name}=2"):
        alone.init()
    if name != "MS_WORKER_NUM":
        with pytest.raises(RuntimeError, match="must be started by torchrun"):
            own.init()


@pytest.mark.parametrize("side", [own, alone])
def test_who_has_not_begun_is_told(side: Any) -> None:
    with pytest.raises(ValueError, match=r"use hvd.init\(\)"):
        side.rank()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ("backward_passes_per_step=0", "must be > 0"),
        ("op=hvd.Sum, gradient_predivide_factor=2.0", "where `op` is not Average"),
        ("named_parameters=[p for p in net.parameters()]", "must be tuples"),
        ("named_parameters=[('a', p) for _ in 'ab' for p in net.parameters()]", "each name once"),
        ("named_parameters=[]", "some are not named"),
    ],
)
def test_arguments_that_horovod_does_not_take(settings: str, error: str, tmp_path: Path) -> None:
    script = f"{HEAD}hvd.init()\nnet = Net()\n"
    script += "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
    script += f"optimizer = hvd.DistributedOptimizer(optimizer, {settings})\n"
    with pytest.raises(ValueError, match=error):
        exec(script, {"__name__": "script"})
    with pytest.raises(ValueError, match=error):
        loaded(ported(script).text, tmp_path)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("hvd.SyncBatchNorm(3)", "nn.BatchNorm2d"),
        ("hvd.alltoall(made)", "not ported"),
        ("hvd.elastic.run(made)", "one process trains it"),
        ("hvd.allreduce(made, process_set=made)", "one process trains it"),
        ("hvd.init(comm=made)", "one process trains it"),
    ],
)
def test_the_rest_is_refused_by_its_line_for_mindspore(line: str, why: str) -> None:
    script = f"{HEAD}hvd.init()\n{line}\n"
    (refused,) = [one for one in ported(script).edits if one.kind == "refused"]
    assert refused.line == script.count("\n")
    assert why in refused.reason


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("hvd.SyncBatchNorm(3)", "no such"),
        ("hvd.elastic.run(made)", "no such"),
        ("hvd.allreduce(made, process_set=made)", "every process takes part"),
        ("hvd.init(made)", "every process takes part"),
    ],
)
def test_the_rest_is_refused_by_its_line_for_an_npu(line: str, why: str) -> None:
    script = f"{HEAD}hvd.init()\n{line}\n"
    (refused,) = [one for one in ported(script, NPU).edits if one.kind == "refused"]
    assert refused.line == script.count("\n")
    assert why in refused.reason


@pytest.mark.parametrize(
    ("line", "to"),
    [
        ("import horovod.torch as hvd", "import mpcore_compat.horovod as hvd"),
        ("from horovod import torch as hvd", "import mpcore_compat.horovod as hvd"),
        ("from horovod.torch import rank, size as n", "from mpcore_compat.horovod import rank"),
        ("from horovod.torch import *", "from mpcore_compat.horovod import *"),
        ("import horovod.torch", "by a name of its own"),
        ("from horovod.torch import rank, SyncBatchNorm", "mpcore_compat.horovod has no such"),
        ("import horovod.tensorflow as hvd", "use torch.distributed"),
    ],
)
def test_imports_of_horovod(line: str, to: str) -> None:
    assert to in ported(f"import torch\n{line}\n", NPU).text


def test_the_porter_knows_the_names_of_what_stands_for_horovod() -> None:
    assert settings()["horovod"]["names"] == own.__all__
    text = Path(own.__file__).read_text(encoding="utf-8")
    made = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert {name for name in made if not name.startswith("_")} <= set(own.__all__)
