"""What ports of public scripts got wrong, as the smallest script of each kind."""

import pytest

from .ports import ported


def said(found, kind):
    """Return the lines of the edits of a kind."""
    return {edit.line for edit in found.edits if edit.kind == kind}


TWO_WAYS = """import torch
def fit(model, optimizer, scaler, batches, loss_of, half):
    model = torch.distributed.fsdp.FullyShardedDataParallel(model)
    for x, y in batches:
        optimizer.zero_grad()
        if not half:
            out = model(x)
            loss = loss_of(out, y)
            score = out.mean()
            loss.backward()
            optimizer.step()
        else:
            with torch.cuda.amp.autocast():
                out = model(x)
                loss = loss_of(out, y)
                score = out.mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print(score, out)
"""


def test_a_name_that_only_losses_assign_is_bound_for_nonlocal():
    found = ported(TWO_WAYS)
    assert "nonlocal" in found.text  # else nothing is tried


CHOSEN = """import argparse
import torch
from torch import nn, optim
parser = argparse.ArgumentParser()
parser.add_argument("--opt", default="adam")
args = parser.parse_args()
net = nn.Linear(2, 2)
if args.opt == "adam":
    cls = optim.Adam
elif args.opt == "sgd":
    cls = optim.SGD
opt = cls(net.parameters(), lr=0.1)
"""


def test_one_of_several_classes_stays_one_of_several():
    found = ported(CHOSEN)
    assert "opt = cls(" in found.text
    assert "port.Adam\n" in found.text
    assert "port.SGD\n" in found.text
    assert 12 in said(found, "unproven")


def test_an_alias_of_one_class_is_that_class():
    found = ported(CHOSEN.replace("cls = optim.SGD", "cls = optim.Adam"))
    assert "opt = cls(" not in found.text
    assert 12 not in said(found, "unproven")


NEIGHBOUR = """import torch
from glow import Flow
def main(device):
    model = Flow(3).cuda()
    other = Flow(4).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model.train()
    other.load_state_dict(model.state_dict())
    return optimizer
"""


@pytest.mark.parametrize("line", range(6, 9))
def test_what_a_neighbours_class_makes_is_translated_and_unproven(line):
    found = ported(NEIGHBOUR)
    assert line in said(found, "unproven")
    for word in (".cuda()", ".to(", ".parameters()", ".train()", ".load_state_dict(model"):
        assert f"model{word}" not in found.text
        assert f"){word}" not in found.text


def test_what_a_known_package_makes_keeps_its_methods():
    found = ported("import torch\nimport logging\nlog = logging.getLogger()\nlog.train()\n")
    assert "log.train()" in found.text


EVALUATED = """import torch
from torch import nn
net = nn.Linear(2, 2)
def test(batches):
    with torch.no_grad():
        total = 0
        for x, y in batches:
            x, y = x.cuda(), y.cuda()
            total += net(x).sum().item()
        return total
"""


def test_a_region_of_several_statements_goes_and_no_rule_fails():
    assert "no_grad" not in ported(EVALUATED).text


STATES = """import torch
from torch import nn
net = nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler(enabled=use_amp)
for x in batches:
    opt.zero_grad()
    with torch.cuda.amp.autocast(enabled=use_amp):
        loss = net(x).mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    {}
state = scaler.state_dict()
scaler.load_state_dict(state)
"""


@pytest.mark.parametrize("on", [True, False])
def test_the_state_of_a_scaler_that_may_be_switched_off(on):
    import mindspore as ms

    text = ported("use_amp = True\n" + STATES.format("")).text
    lines = [one for one in text.splitlines() if "_growth_tracker" in one]
    assert len(lines) == 2
    scaler = ms.amp.DynamicLossScaler(8.0, 2, 5) if on else ms.amp.StaticLossScaler(1.0)
    held = {"ms": ms, "scaler": scaler}
    exec("\n".join(lines), held)  # two lines of the port
    assert bool(held["state"]) is on


def test_gradients_that_are_read_are_there():
    found = ported("use_amp = True\n" + STATES.format("print(net.weight.grad)"))
    assert "train_cell" not in found.text  # a cell keeps them
    assert "parameter.grad = grad" in found.text
    assert any("has no gradient behind the step" in edit.effect for edit in found.edits)


MOVED = """import torch
import torch.nn.functional as F
from torch import nn
teacher, student = nn.Linear(2, 2), nn.Linear(2, 2)
t_opt = torch.optim.SGD(teacher.parameters(), lr=0.1)
s_opt = torch.optim.SGD(student.parameters(), lr=0.1)
student = torch.nn.parallel.DistributedDataParallel(student)
for x, y in batches:
    with torch.autocast("cuda"):
        t_loss = F.mse_loss(teacher(x), y)
        out = student(x)
        before = F.mse_loss({}, y)
        s_loss = F.mse_loss(out, teacher(x))
    s_opt.zero_grad()
    s_loss.backward()
    s_opt.step()
    loss = t_loss * before
    t_opt.zero_grad()
    loss.backward()
    t_opt.step()
"""


def test_a_detached_value_is_not_computed_again_by_weights_that_moved():
    found = ported(MOVED.format("out.detach()"))
    assert "train_step_t(x, y, out)" in found.text  # it is handed in, as it was
    wrapped = MOVED.replace("parallel.DistributedDataParallel(student)", "utils.other(student)")
    sharded = wrapped.replace(
        "import torch\n", "import torch\nfrom torch.distributed import fsdp\n"
    )
    sharded = sharded.replace("torch.nn.utils.other", "fsdp.FullyShardedDataParallel")
    kept = ported(sharded.format("out.detach()"))
    assert any("before an optimizer's step" in edit.reason for edit in kept.edits)


LEARNS = """import torch
import torch.nn.functional as F
def turn(teacher, student, t_opt, s_opt, t_scaler, s_scaler, batches):
    for x, y in batches:
        with torch.autocast("cuda"):
            guess = teacher(x)
            seen = student(x)
            old = seen[:4]
            before = F.cross_entropy({}, y)
            s_loss = F.cross_entropy(seen, guess.detach().argmax(1))
        s_scaler.scale(s_loss).backward()
        s_scaler.step(s_opt)
        s_scaler.update()
        with torch.autocast("cuda"):
            with torch.no_grad():
                new = student(x)
            gain = before - F.cross_entropy(new.detach(), y)
            loss = gain * F.cross_entropy(guess, y)
        t_scaler.scale(loss).backward()
        t_scaler.step(t_opt)
        t_scaler.update()
        {}.zero_grad()
        student.zero_grad()
"""


def test_numbers_of_before_and_behind_a_step_are_made_where_they_stand():
    text = ported(LEARNS.format("old.detach()", "teacher")).text
    body = text[text.index("    for x, y in batches:") :]
    order = ["= train_step_s(", "before = ", "new = student(x)", "gain = ", "train_step_t("]
    places = [body.index(words) for words in order]
    assert places == sorted(places)
    assert body.count("with port.autocast():") == 2
    assert text.count("seen = student(x)") == 1


@pytest.mark.parametrize(("value", "zeroed"), [("old", "teacher"), ("old.detach()", "other")])
def test_a_student_that_its_teachers_loss_runs_again_keeps_torchs_form(value, zeroed):
    found = ported(LEARNS.format(value, zeroed))
    assert "forward_fn" not in found.text
    assert any("the loop keeps torch's form" in edit.reason for edit in found.edits)


def test_what_runs_before_a_step_is_not_run_behind_it():
    found = ported(MOVED.format("out"))
    assert any("student runs before an optimizer's step" in edit.reason for edit in found.edits)
    assert "forward_fn" not in found.text
