"""Verification really runs both scripts; here are pairs that are the same, and ways to differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpcore_port.verify.judge import (
    NUDGES,
    ROUNDING,
    Comparison,
    Run,
    Verification,
    VerifyOptions,
    allow_rounding,
    compare,
    drift,
)
from mpcore_port.verify.run import verify

pytestmark = pytest.mark.usefixtures("warm_workers")

CUDA = """
import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = GradScaler()
for step in range(12):
    x = torch.randn(16, 4).cuda(non_blocking=True)
    x = x * (1 + list(set("abcde")).index("a") / 8)  # the order of a set of texts
    with autocast():
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
torch.save(scaler.state_dict(), "scaler.pt")
"""


def on_npu(text):
    return (
        text.replace("import torch\n", "import torch\nimport torch_npu\n", 1)
        .replace("torch.cuda.amp", "torch_npu.npu.amp")
        .replace('"cuda"', '"npu"')
        .replace("torch.cuda.", "torch.npu.")
        .replace(".cuda(", ".npu(")
    )


NPU = on_npu(CUDA)
SHORT = VerifyOptions(losses=8, at=2)
MIXED = replace(SHORT, modes=("mixed",))


def run(tmp_path, original, port, options=SHORT):
    paths = []
    for name, text in (("train.py", original), ("ported.py", port)):
        paths.append(tmp_path / name)
        paths[-1].write_text(text, encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    found = verify(*paths, "torch_npu", options)
    assert sorted(tmp_path.iterdir()) == before  # scripts write into folders of their own
    assert [one.mode for one in found.comparisons] == list(options.modes)
    return found


def test_a_faithful_port_is_the_same_bit_for_bit(tmp_path):
    found = run(tmp_path, CUDA, NPU)
    assert found.passed
    float32, mixed, overflow = found.comparisons
    assert {one.verdict for one in found.comparisons} == {"same"}
    assert (float32.scales, len(float32.original), float32.original_scales) == (True, 8, ())
    assert len(mixed.original_scales) == 8
    assert float32.original != mixed.original  # float32 really is another precision
    halved = [b / a for a, b in zip(overflow.port_scales, overflow.port_scales[1:], strict=False)]
    assert 0.5 in halved
    assert overflow.port_scales[2] == overflow.port_scales[1] / 2  # the planted step


def test_a_process_of_several_does_not_wait_for_the_others(tmp_path):
    group = """
torch.distributed.init_process_group(
    "nccl", init_method="tcp://127.0.0.1:6789", world_size=8, rank=0
)
optimizer = """
    text = CUDA.replace("optimizer = ", group, 1)
    found = run(tmp_path, text, on_npu(text).replace("nccl", "hccl"), MIXED)
    assert found.passed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("lr=0.1", "lr=0.2"), "relative apart"),
        (("scaler.update()", "scaler.update(); scaler.update(1024.0)"), "scales differ"),
        (("momentum=0.9)", "momentum=0.9, fused=True)"), "unexpected keyword argument 'grad_s"),
        (("range(12)", "range(5)"), "8 losses against 5"),
    ],
    ids=["another constant", "another scale", "fused with a scaler", "shorter"],
)
def test_what_differs_is_told(tmp_path, change, words):
    found = run(tmp_path, CUDA, NPU.replace(*change), MIXED)
    assert not found.passed
    (mixed,) = found.comparisons
    assert mixed.verdict in ("different", "not compared")
    assert words in mixed.words


def _losses(*values: float, mode="mixed", original=(1.0, 0.5), **more):
    base = Comparison(mode, "different", (2, 2), 1e-2, True, 0, "", True)
    return replace(base, original=original, port=values, **more)


@pytest.mark.parametrize(
    ("change", "verdicts"),
    [
        ({}, ["close", "close"]),  # 16 bits: the original is 1e-2 from its own float32
        ({"alike": False}, ["close", "different"]),
        ({"scales": False}, ["close", "different"]),
        ({"port": (1.2, 0.5)}, ["close", "different"]),
    ],
)
def test_rounding_that_the_report_names_is_no_difference(change, verdicts):
    exact = _losses(1.00005, 0.5, mode="float32", original=(1.0, 0.5), largest=5e-5)
    mixed = _losses(1.015, 0.5, original=(1.01, 0.5))
    done = Verification("a.py", "torch_npu", (exact, replace(mixed, **change)))
    assert not done.passed
    judged = allow_rounding(done, "71, 109")
    assert [one.verdict for one in judged.comparisons] == verdicts
    assert judged.comparisons[0].words.endswith("; rounding differs by lines 71, 109")
    far = replace(exact, largest=2e-4)
    judged = allow_rounding(replace(done, comparisons=(far,)), "1")
    assert judged.comparisons == (far,)


MAGNIFIED = CUDA.replace(
    "with autocast():",
    """with autocast():
        rounding = (6e4 * model(x).detach().float()).sin().mean()  # by it no weight moves""",
)
MAGNIFIED = MAGNIFIED.replace("** 2).mean()", "** 2).mean() + 1 + rounding")
# What another kernel does, of a size that is known on each machine: one of the judge's own draws.
OTHERWISE = on_npu(MAGNIFIED).replace(
    "optimizer = ",
    f"""
drawn = torch.Generator().manual_seed({NUDGES[0]})
for weight in model.parameters():
    up = torch.rand(weight.shape, generator=drawn) < 0.5
    end = torch.where(up, float("inf"), -float("inf"))
    weight.data.copy_(torch.nextafter(weight.data, end))
optimizer = """,
    1,
)


@pytest.mark.parametrize(
    ("change", "passes"),
    [(("", ""), True), (("momentum=0.9", "momentum=0.8"), False)],
    ids=["other kernels", "a fault"],
)
def test_what_rounding_does_to_the_original_it_may_do_to_a_port(tmp_path, change, passes):
    options = replace(SHORT, rounds=True, modes=("float32",))
    done = run(tmp_path, MAGNIFIED, OTHERWISE.replace(*change), options)
    (one,) = done.comparisons
    assert one.verdict == "different"
    assert one.largest > ROUNDING
    assert len(one.own) == 8
    judged = allow_rounding(done, "7")
    assert judged.passed is passes
    assert judged.comparisons[0].by_sensitivity is passes
    words = "within the original's own sensitivity to rounding" if passes else "moves the original"
    assert words in judged.comparisons[0].words
    assert "bit for bit" not in judged.comparisons[0].words
    unmeasured = replace(done, comparisons=(replace(one, own=()),))
    assert not allow_rounding(unmeasured, "7").passed


@pytest.mark.parametrize(
    ("port", "own", "passes"),
    [
        ((1.001, 0.5), (1e-3, 1e-3), True),
        ((1.001, 0.5), (1e-5, 1e-3), False),  # early losses have the drift of early losses
        ((1.0, 0.51), (1e-3, 1e-3), False),
        ((1.001, 0.5), (1e-3,), False),  # the nudged original stopped before
    ],
)
def test_each_loss_has_the_drift_up_to_it(port, own, passes):
    one = _losses(*port, mode="float32", original=(1.0, 0.5), largest=1e-3, own=own)
    judged = allow_rounding(Verification("a.py", "torch_npu", (one,)), "7")
    assert judged.passed is passes
    assert drift((1.0, 2.0), [(1.0, 2.0), (1.25, 2.0)]) == (0.2, 0.2)


def test_an_original_that_rounding_moves_far_proves_nothing():
    one = _losses(1.1, 0.5, mode="float32", original=(1.0, 0.5), largest=0.1)
    done = Verification("a.py", "torch_npu", (replace(one, own=(0.2, 0.2)),))
    judged = allow_rounding(done, "7")
    assert not judged.passed
    assert "too much to tell" in judged.why_not


SLOW = """
import time
def work(until=[0.0]):
    until[0] += 0.1
    while time.process_time() < until[0]:
        pass
"""


@pytest.mark.parametrize(
    ("change", "verdicts"),
    [
        (("", ""), ["same", "same", "same"]),
        (("lr=0.1", "lr=0.2"), ["different", "different", "different"]),
        (("    scaler.update()", "    pass"), ["same", "different", "different"]),
        (("    scaler.step(optimizer)", "    pass"), ["different"] * 3),
        (("GradScaler()", "GradScaler(backoff_factor=0.25)"), ["same", "different", "different"]),
    ],
    ids=["faithful", "another constant", "no update", "no step", "another factor"],
)
def test_slow_runs_are_compared_by_the_losses_that_both_have(tmp_path, change, verdicts):
    def slow(text):
        return text.replace("autocast\n", "autocast\n" + SLOW).replace(
            "range(12):", "range(12):\n    work()"
        )

    options = VerifyOptions(time_limit=4.0)  # 0.4 s of it are enough for three losses
    port = slow(NPU).replace(*(part.strip() for part in change)) if change[0] else slow(NPU)
    found = run(tmp_path, slow(CUDA), port, options)
    assert [one.verdict for one in found.comparisons] == verdicts
    assert all(min(one.losses) < 12 for one in found.comparisons)
    if change[0] == "":
        assert found.passed
        assert all(min(one.losses) >= 3 for one in found.comparisons)
        assert "no more in 0.4 s" in found.comparisons[0].words
        assert found.comparisons[2].port_scales[1] == found.comparisons[2].port_scales[0] / 2


@pytest.mark.parametrize(
    ("ends", "counts", "verdict"),
    [
        (("short", "late"), (4, 3), "same"),
        (("short", "short"), (3, 4), "same"),
        (("late", "ok"), (3, 20), "same"),
        (("late", "failed"), (3, 3), "same"),  # nobody knows what the original would have done
        (("short", "failed"), (3, 3), "different"),  # the original came to its fourth loss
        (("short", "failed"), (3, 2), "different"),
        (("short", "ok"), (4, 3), "different"),
        (("late", "late"), (1, 3), "not compared"),
    ],
)
def test_time_alone_is_no_difference_and_hides_none(ends, counts, verdict):
    runs = [
        Run((0.5,) * n, (), n, end, "", tuple((i, 0) for i in range(n)))
        for end, n in zip(ends, counts, strict=True)
    ]
    assert compare("float32", *runs, VerifyOptions()).verdict == verdict
    runs[1] = replace(runs[1], before=((0, 0),) * counts[1])  # a step was dropped
    assert compare("float32", *runs, VerifyOptions()).verdict in ("different", "not compared")


@pytest.mark.parametrize(
    ("count", "verdict"), [(1, "not compared"), (2, "not compared"), (3, "same")]
)
def test_both_that_fail_after_their_first_steps_prove_nothing(count, verdict):
    before = tuple((i, 0) for i in range(count))
    run = Run((0.5,) * count, (), count, "failed", "OSError: no space", before)
    one = compare("mixed", run, run, VerifyOptions())
    assert one.verdict == verdict
    assert "both stopped" in one.words
    assert "OSError: no space" in one.words
    planted = replace(one, verdict=compare("overflow", run, run, VerifyOptions(at=0)).verdict)
    assert planted.verdict == "same"  # what had become infinite ended both


def test_scaler_states_of_cuda_lack_what_an_npu_wants(tmp_path):
    load = 'scaler.load_state_dict({"scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, '
    load += '"growth_interval": 2000, "_growth_tracker": 0})\n'
    after = "scaler = GradScaler()\n"
    found = run(
        tmp_path, CUDA.replace(after, after + load), NPU.replace(after, after + load), MIXED
    )
    assert found.comparisons[0].verdict == "not compared"
    assert "KeyError: 'dynamic'" in found.comparisons[0].words


def test_scripts_that_do_not_run_are_no_proof(tmp_path):
    found = run(tmp_path, "import no_such_module_of_data\n" + CUDA, NPU, MIXED)
    assert not found.passed
    assert {one.verdict for one in found.comparisons} == {"not compared"}
    assert "the original recorded no loss" in found.comparisons[0].words
    assert "No module named 'no_such_module_of_data'" in found.comparisons[0].words


def test_endless_scripts_are_ended(tmp_path):
    endless = "while True:\n    pass\n" + CUDA
    found = run(tmp_path, endless, NPU, replace(MIXED, time_limit=2.0))
    assert "the original recorded no loss: it was ended after 2 s" in found.comparisons[0].words


def test_scripts_of_apex_find_a_scaler_in_float32_too(tmp_path):
    apex = """
import torch
from apex import amp
model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(models=model, optimizers=optimizer, opt_level="O1")
amp._amp_state.loss_scalers[0]._loss_scale = 2**20
for _ in range(4):
    loss = model(torch.randn(8, 4)).square().mean()
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    alike = "import torch_npu\nimport mpcore_compat.apex.amp\n" + apex.replace(
        "from apex", "from mpcore_compat.apex"
    ).replace(".cuda()", ".npu()")
    found = run(tmp_path, apex, alike, replace(SHORT, losses=4))
    assert [one.verdict for one in found.comparisons] == ["same"] * 3
    assert found.comparisons[0].original_scales == ()
    assert found.comparisons[1].original_scales != ()
