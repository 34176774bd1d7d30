"""Scripts that train through accelerate run on MindSpore with torch's numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpcore_port_runtime import accelerate

from .accelerate_in_torch import install
from .ports import FILLED, beside, compare, loaded, ported

if TYPE_CHECKING:
    from pathlib import Path

HEAD = f"""{FILLED}
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, GradScalerKwargs, set_seed
from torch.utils.data import DataLoader, TensorDataset
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = (nn.Parameter(torch.zeros(size)) for size in ((3, 4), (4, 1)))
    def forward(self, x):
        return torch.relu(x @ self.one) @ self.two
x = torch.linspace(-1.03, 2.1, 33).view(11, 3)
y = x.sum(1, keepdim=True) * 2
"""

LOOP = """set_seed(3)
accelerator = Accelerator({asked})
model = filled(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
loader = DataLoader(TensorDataset(x, y), batch_size=2)
{prepared}
for epoch in range(2):
    model.train()
    for inputs, wanted in loader:
        with accelerator.accumulate(model):
            out = model(inputs.to(accelerator.device))
            loss = F.mse_loss(out, wanted)
            accelerator.backward(loss)
            {clip}
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        made.append(accelerator.gather(loss).item())
        made.append(float(accelerator.sync_gradients))
        made.append(optimizer.param_groups[0]["lr"])
        made.append(accelerator.gather_for_metrics(torch.ones(5)).sum().item())
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    made += list(accelerator.get_state_dict(accelerator.unwrap_model(model)).values())
"""
ALL = "model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)"
MIXED = (
    "loader, model, schedule, optimizer = accelerator.prepare(loader, model, schedule, optimizer)"
)
ALONE = """model = accelerator.prepare(model)
loader = accelerator.prepare(loader)
optimizer = accelerator.prepare(optimizer)"""
NORM = """if accelerator.sync_gradients:
                made.append(accelerator.clip_grad_norm_(model.parameters(), 0.5))"""
VALUE = """if accelerator.sync_gradients:
                accelerator.clip_grad_value_(model.parameters(), 0.1)"""
HALF = (
    'mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale={}, growth_interval=2)]'
)


pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")


@pytest.fixture(autouse=True)
def _accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    monkeypatch.setattr(accelerate, "_STATE", accelerate._State())


@pytest.mark.parametrize(
    ("asked", "prepared", "clip"),
    [
        ("", ALL, ""),
        ("", MIXED, NORM),
        ('mixed_precision="no", split_batches=True', ALONE, VALUE),
        ("gradient_accumulation_steps=4", ALL, ""),
        ("gradient_accumulation_steps=4, log_with=None", MIXED, NORM),
        (
            "gradient_accumulation_steps=3, "
            "kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)]",
            ALONE,
            VALUE,
        ),
        ("step_scheduler_with_optimizer=False, gradient_accumulation_steps=4", ALL, ""),
    ],
)
def test_a_loop_ends_where_torchs_does(
    asked: str, prepared: str, clip: str, tmp_path: Path
) -> None:
    script = HEAD + LOOP.format(asked=asked, prepared=prepared, clip=clip)
    found = beside(script, tmp_path)
    assert not [one for one in found.edits if one.kind in ("refused", "unproven")]


@pytest.mark.parametrize("window", ["", "gradient_accumulation_steps=3, "])
@pytest.mark.parametrize("clip", ["", NORM, VALUE])
def test_in_float16_it_is_scaled(window: str, clip: str, tmp_path: Path) -> None:
    script = HEAD + LOOP.format(asked=window + HALF.format("8.0"), prepared=ALL, clip=clip)
    script += "made.append(accelerator.scaler.get_scale())\n"
    compare(script, ported(script).text, tmp_path, rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize("window", ["", "gradient_accumulation_steps=3, "])
@pytest.mark.parametrize("clip", ["", NORM])
def test_a_step_that_overflows_holds_the_schedule(window: str, clip: str, tmp_path: Path) -> None:
    asked = window + HALF.format("2.0**20")
    script = HEAD + LOOP.format(asked=asked, prepared=ALL, clip=clip)
    told = "made.append(float(accelerator.optimizer_step_was_skipped))"
    script = script.replace(
        "        made.append(optimizer.", f"        {told}\n        made.append(optimizer."
    )
    script += "made.append(accelerator.scaler.get_scale())\n"
    compare(script, ported(script).text, tmp_path, rtol=3e-3, atol=3e-3)


def test_what_may_differ_is_said() -> None:
    """Skips of float16 among it: an Accelerator is not called exact."""
    script = HEAD + LOOP.format(asked=HALF.format("8.0"), prepared=ALL, clip="")
    (said,) = [one for one in ported(script).edits if one.old.startswith("Accelerator(")]
    assert said.kind == "changed"
    assert "steps may be skipped at other losses" in said.effect


TRAINER = """def cycle(batches):
    while True:
        for batch in batches:
            yield batch
class Trainer:
    def __init__(self, model, accelerator, every=3):
        self.accelerator, self.every = accelerator, every
        self.opt = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.99))
        batches = self.accelerator.prepare(DataLoader(TensorDataset(x, y), batch_size=4))
        self.batches, self.held = cycle(batches), self.accelerator.prepare(
            DataLoader(TensorDataset(x, y), batch_size=3)
        )
        self.model, self.opt = self.accelerator.prepare(model, self.opt)
    def loss_of(self, inputs, wanted):
        return F.mse_loss(self.model(inputs), wanted)
    def train(self):
        for step in range(4):
            total = 0.0
            for _ in range(self.every):
                inputs, wanted = next(self.batches)
                with self.accelerator.autocast():
                    loss = self.loss_of(inputs, wanted)
                    loss = loss / self.every
                    total += loss.item()
                self.accelerator.backward(loss)
            self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad()
            made.append(total)
            self.test()
    def test(self):
        self.model.eval()
        with torch.no_grad():
            for inputs, wanted in self.held:
                out = self.accelerator.gather_for_metrics(self.model(inputs))
                made.append(self.accelerator.reduce(out.sum(), reduction="mean"))
        self.model.train()
accelerator = Accelerator({asked})
Trainer(filled(Net()), accelerator).train()
accelerator.free_memory()
accelerator.end_training()
"""


@pytest.mark.parametrize(("asked", "tolerance"), [("", 1e-5), (HALF.format("8.0"), 3e-3)])
def test_a_trainer_that_is_handed_its_accelerator(
    asked: str, tolerance: float, tmp_path: Path
) -> None:
    script = HEAD + TRAINER.replace("{asked}", asked)
    found = ported(script)
    assert not [one for one in found.edits if one.kind == "refused"]
    compare(script, found.text, tmp_path, rtol=tolerance, atol=tolerance)


TWO_LOADERS = """class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, 1))
    def encode(self, x):
        return x @ self.w
    def forward(self, x):
        return {"out": self.encode(x)}
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for i in range(7):
            yield x[i], y[i]
accelerator = Accelerator(gradient_accumulation_steps=3)
net, ema = accelerator.prepare(filled(Named())), None
ema = copy.deepcopy(accelerator.unwrap_model(net))
opt = accelerator.prepare(torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9))
sched = torch.optim.lr_scheduler.OneCycleLR(opt.optimizer, max_lr=0.1, total_steps=4)
sched = accelerator.prepare(sched)
train, held = accelerator.prepare(
    DataLoader(Stream(), batch_size=3), DataLoader(TensorDataset(x, y), batch_size=4)
)
for epoch in range(3):
    for step, (a, b) in enumerate(train):
        with accelerator.accumulate(net):
            loss = F.mse_loss(accelerator.unwrap_model(net).encode(a), b)
            loss = loss + F.mse_loss(net(a)["out"], b)
            accelerator.backward(loss)
            opt.step()
            sched.step()
            opt.zero_grad()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), net.parameters()):
                e.lerp_(p, 0.5)
        made.append(loss.item())
        made.append(float(accelerator.sync_gradients))
        made.append(sched.get_last_lr()[0])
        made.append(accelerator.gather_for_metrics(torch.ones(5)).sum().item())
        for a, b in held:
            if a.sum() > 4:
                break
            made.append(accelerator.gather_for_metrics(torch.ones(4)).sum().item())
    state = {"opt": opt.state_dict(), "sched": sched.state_dict()}
    opt.load_state_dict(state["opt"])
    sched.load_state_dict(state["sched"])
made += [p.data for p in ema.parameters()]
"""


def test_windows_follow_the_loader_that_is_gone_through(tmp_path: Path) -> None:
    found = beside(f"import copy\n{HEAD}{TWO_LOADERS}", tmp_path)
    assert not [one for one in found.edits if one.kind in ("refused", "unproven")]


def test_bfloat16_wants_ascend(tmp_path: Path) -> None:
    script = HEAD + LOOP.format(asked='mixed_precision="bf16"', prepared=ALL, clip="")
    with pytest.raises(Exception, match="bfloat16 must run on Ascend"):
        compare(script, ported(script).text, tmp_path)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("accelerator.unwrap_model(model, keep_fp32_wrapper=False)", "keeps its region"),
        ('accelerator.save(model, "f", safe_serialization=True)', "port.load reads"),
        ("accelerator.something_else()", "has no such"),
        ('Accelerator(mixed_precision="fp8")', "must be one of 'no', 'fp16', 'bf16'"),
        ("Accelerator(deepspeed_plugin=model)", "one device"),
        ('Accelerator(dynamo_backend="inductor")', "compile the network"),
    ],
)
def test_what_is_not_there_is_refused_by_its_line(line: str, why: str) -> None:
    script = HEAD + LOOP.format(asked="", prepared=ALL, clip="") + line + "\n"
    (refused,) = [one for one in ported(script).edits if one.kind == "refused"]
    assert refused.line == script.count("\n")
    assert why in refused.reason


@pytest.mark.parametrize(
    ("asked", "kinds"),
    [
        ('log_with="mlflow"', ["refused"]),
        ("log_with=['wandb', 'aim']", ["refused"]),
        ("log_with=model", ["unproven"]),
        ('log_with="wandb"', []),
        ("log_with=['wandb', 'tensorboard']", []),
    ],
)
def test_trackers_are_refused_where_they_begin(asked: str, kinds: list[str]) -> None:
    script = HEAD + LOOP.format(asked=asked, prepared=ALL, clip="")
    script += 'accelerator.init_trackers("runs")\naccelerator.log({"loss": 1.0})\n'
    said = [one for one in ported(script).edits if one.kind in ("refused", "unproven")]
    assert [one.kind for one in said] == kinds
    assert all("trackers" in one.reason for one in said)


def test_trackers_that_a_star_may_ask_for_are_refused_when_it_runs(tmp_path: Path) -> None:
    script = "from accelerate import Accelerator\ndef train(**kwargs):\n"
    script += "    accelerator = Accelerator(split_batches=False, **kwargs)\n"
    script += '    accelerator.init_trackers("runs", config={"lr": 0.1})\n'
    script += '    accelerator.log({"loss": 1.0}, step=1)\n    return 3\n'
    found = ported(script)
    (said,) = [one for one in found.edits if one.kind in ("refused", "unproven")]
    assert (said.kind, said.line) == ("unproven", 4)
    train = loaded(found.text, tmp_path)["train"]
    assert train(cpu=True) == train(log_with=None) == 3
    with pytest.raises(NotImplementedError, match="others are not ported"):
        train(log_with="mlflow")


def test_kinds_of_machines_are_compared_by_their_words(tmp_path: Path) -> None:
    script = "from accelerate import Accelerator, DistributedType\n"
    script += "from accelerate.utils import DistributedType as Kind, GradScalerKwargs\n"
    script += "class Trainer:\n    def __init__(self):\n        self.accelerator = Accelerator()\n"
    script += "    @property\n    def is_alone(self):\n"
    script += "        return self.accelerator.distributed_type == DistributedType.NO\n"
    script += "made = [Trainer().is_alone, Kind.TPU == DistributedType.NO]\n"
    script += "made.append(Kind.MULTI_XPU == Kind('MULTI_XPU'))\n"
    found = ported(script)
    assert not [one for one in found.edits if one.kind in ("refused", "unproven")]
    assert loaded(found.text, tmp_path)["made"] == [True, False, True]


@pytest.mark.parametrize("name", ["DistributedType.FLEET", "GradScalerKwargs.init_scale"])
def test_attributes_that_no_row_has_are_refused(name: str) -> None:
    script = "from accelerate import Accelerator, DistributedType\n"
    script += f"from accelerate.utils import GradScalerKwargs\nmade = {name}\n"
    (refused,) = [one for one in ported(script).edits if one.kind == "refused"]
    assert refused.line == 3


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ("dict(gradient_accumulation_steps=3, even_batches=False, fsdp_plugin=None)", None),
        ("dict(fsdp_plugin=made)", NotImplementedError),
        ("dict(mixed_precision='fp8')", NotImplementedError),
        ("dict(no_such=1)", TypeError),
    ],
)
def test_settings_that_are_known_when_it_runs(
    settings: str, error: type[Exception] | None, tmp_path: Path
) -> None:
    script = "from accelerate import Accelerator\nmade = [1.0]\n"
    script += f"accelerator = Accelerator(**{settings})\n"
    script += "accelerator.even_batches = False\nsteps = accelerator.gradient_accumulation_steps\n"
    found = ported(script)
    assert not [one for one in found.edits if one.kind in ("refused", "unproven")]
    if error is None:
        assert loaded(found.text, tmp_path)["steps"] == 3
    else:
        with pytest.raises(error):
            loaded(found.text, tmp_path)


GROUPED = """import torch
from torch import nn
from accelerate import Accelerator
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
    def param_groups(self, lr):
        return [{"params": [self.weight], "lr": lr}]
    def forward(self, x):
        return x @ self.weight
made = []
accelerator = Accelerator()
net = Net()
opt = torch.optim.SGD(net.param_groups(0.1), lr=0.2)
net, opt = accelerator.prepare(net, opt)
for _ in range(2):
    loss = net(torch.ones(3, 2)).pow(2).mean()
    accelerator.backward(loss)
    opt.step()
    opt.zero_grad()
    made.append(loss)
"""


def test_a_network_may_have_a_method_that_makes_groups(tmp_path):
    text = ported(GROUPED).text
    made = loaded(text, tmp_path)["made"]
    assert [round(float(one.asnumpy()), 4) for one in made] == [4.0, 1.44]


def test_plugins_that_a_branch_makes_must_be_none_when_it_runs(tmp_path: Path) -> None:
    script = (
        "from accelerate import Accelerator\nmade = [1.0]\nsharded = False\n"
        "if sharded:\n    plugin = object()\nelse:\n    plugin = None\n"
        "accelerator = Accelerator(fsdp_plugin=plugin)\n"
    )
    found = ported(script)
    assert [one.line for one in found.edits if one.kind == "unproven"] == [8]
    loaded(found.text, tmp_path)
    with pytest.raises(NotImplementedError, match="fsdp_plugin"):
        loaded(found.text.replace("sharded = False", "sharded = True"), tmp_path)
    sure = ported(script.replace("fsdp_plugin=plugin", "fsdp_plugin=object()"))
    assert [one.line for one in sure.edits if one.kind == "refused"] == [8]


def test_what_was_prepared_is_listed_as_accelerate_lists_it(tmp_path: Path) -> None:
    script = (
        f"{FILLED}from accelerate import Accelerator\naccelerator = Accelerator()\n"
        "net = filled(nn.Linear(2, 2))\nopt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "net, opt = accelerator.prepare(net, opt)\n"
        "made += [len(accelerator._models), len(accelerator._optimizers)]\n"
        "made += [len(accelerator._schedulers), len(accelerator._dataloaders)]\n"
    )
    found = ported(script)
    assert not [one for one in found.edits if one.kind == "refused"]
    assert loaded(found.text, tmp_path)["made"] == [1, 1, 0, 0]
