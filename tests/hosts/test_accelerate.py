"""Accelerate's loop under a policy, beside amp.step."""

from __future__ import annotations

from typing import Any

import pytest

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: make hosts")

import host_run as run
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn
from torch.utils.data import DataLoader

import mpcore as mp
from mpcore_compat.accelerate import Accelerator, under_policy


@pytest.fixture(autouse=True)
def no_state() -> Any:
    """Accelerate keeps its state in the class: each test begins with none."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()


class Run:
    """The loop of Accelerate's own documentation."""

    def __init__(self, policy: str, **options: Any) -> None:
        self.accelerator = Accelerator(
            policy=run.policy_of(policy), cpu=run.DEVICE.type == "cpu", **options
        )
        model = run.network()
        optimizer = run.optimizer_of(model)
        self.model, self.optimizer, self.schedule = self.accelerator.prepare(
            model, optimizer, run.schedule_of(optimizer)
        )
        self.norms: list[float] = []

    def train(self, data: list[Any], clip: float | None = None) -> None:
        accelerator = self.accelerator
        for x, y in data:
            with accelerator.accumulate(self.model):
                accelerator.backward(run.loss_of(self.model, x, y))
                if clip and accelerator.sync_gradients:
                    self.norms.append(
                        float(accelerator.clip_grad_norm_(self.model.parameters(), clip))
                    )
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()

    def end(self) -> dict[str, Any]:
        return run.end_of(self.accelerator.amp, self.schedule.get_last_lr()[0])


@pytest.mark.parametrize("policy", run.POLICIES)
def test_the_loop_ends_where_steps_end(policy: str) -> None:
    mine = Run(policy)
    mine.train(run.batches())
    run.assert_same(run.own_run(policy, run.batches()), mine.end())
    assert mine.accelerator.optimizer_step_was_skipped is False


@pytest.mark.parametrize("policy", run.POLICIES)
def test_clip_and_accumulation(policy: str) -> None:
    ours = run.own_run(policy, run.batches(), parts=2, clip=0.5, average=0.9)
    mine = Run(policy, gradient_accumulation_steps=2)
    average = mp.EMA(mine.accelerator.amp, 0.9)
    mine.train(run.batches(), clip=0.5)
    run.assert_same(ours, mine.end() | {"average": average.weights()})


def test_third_parts_are_within_the_noise_of_float32() -> None:
    def end(policy: str, data: list[Any]) -> dict[str, Any]:
        AcceleratorState._reset_state(reset_partial_state=True)
        mine = Run(policy, gradient_accumulation_steps=3)
        mine.train(data)
        return mine.end()

    run.assert_third_parts(end)


@pytest.mark.parametrize("policy", ["autocast_float16", "portable_float16", "mixed_float16"])
def test_accelerators_own_autocast_may_stand_around(policy: str) -> None:
    mine = Run(policy)
    for x, y in run.batches():
        with mine.accelerator.autocast():
            loss = run.loss_of(mine.model, x, y)
        mine.accelerator.backward(loss)
        mine.optimizer.step()
        mine.schedule.step()
        mine.optimizer.zero_grad()
    run.assert_same(run.own_run(policy, run.batches()), mine.end())
    with pytest.raises(RuntimeError, match="shapes"):
        mine.model(torch.zeros(2, 7, device=run.DEVICE))  # the region is left by an error too
    assert not torch.is_autocast_enabled(run.DEVICE.type)


def test_the_norm_is_the_true_one() -> None:
    mine = Run("model_float16")
    mine.train(run.batches(), clip=0.5)
    net = run.network()
    amp = mp.prepare(net, run.optimizer_of(net), run.policy_of("model_float16"))
    schedule = amp.scheduler(run.schedule_of(amp.optimizer))
    for norm, (x, y) in zip(mine.norms, run.batches(), strict=True):
        result = amp.step(lambda x, y: run.loss_of(net, x, y), x, y, clip_norm=0.5)
        schedule.step()
        assert norm == pytest.approx(float(result.grad_norm), rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("policy", run.POLICIES)
def test_resume_is_the_uninterrupted_run(policy: str, tmp_path: Any) -> None:
    whole = Run(policy)
    whole.train(run.batches()[:10])
    whole.accelerator.save_state(tmp_path)
    whole.train(run.batches()[10:])
    AcceleratorState._reset_state(reset_partial_state=True)
    second = Run(policy)
    second.accelerator.load_state(tmp_path)
    second.train(run.batches()[10:])
    run.assert_same(whole.end(), second.end())


def test_a_skipped_step_is_told_and_holds_the_schedule() -> None:
    mine = Run("mixed_float16")
    for index, batch in enumerate(run.batches()):
        before = mine.schedule.get_last_lr()[0]
        mine.train([batch])
        assert mine.accelerator.optimizer_step_was_skipped is (index in run.BAD)
        assert (mine.schedule.get_last_lr()[0] == before) is (index in run.BAD)


def test_clipping_a_part_by_value_and_by_another_norm() -> None:
    def end(policy: str, clip: Any) -> dict[str, Any]:
        mine = Run(policy)
        for x, y in run.batches():
            mine.accelerator.backward(run.loss_of(mine.model, x, y))
            clip(mine)
            mine.optimizer.step()
            mine.schedule.step()
            mine.optimizer.zero_grad()
        AcceleratorState._reset_state(reset_partial_state=True)
        return mine.end()

    def ours(policy: str, clip: Any) -> dict[str, Any]:
        net = run.network()
        amp = mp.prepare(net, run.optimizer_of(net), run.policy_of(policy))
        schedule = amp.scheduler(run.schedule_of(amp.optimizer))
        for x, y in run.batches():
            with amp.autocast():
                loss = run.loss_of(net, x, y)
            amp.backward(loss)
            amp.unscale()
            clip([amp.masters.get(p, p) for p in net.parameters()])
            amp.apply()
            schedule.step()
        return run.end_of(amp, schedule.get_last_lr()[0])

    for policy in ("mixed_float16", "model_float16", "model_bfloat16, master=split"):
        for mine, native in (
            (
                lambda m: m.accelerator.clip_grad_value_(m.model.parameters(), 0.01),
                lambda params: nn.utils.clip_grad_value_(params, 0.01),
            ),
            (
                lambda m: m.accelerator.clip_grad_norm_(m.model.parameters(), 0.1, 1.0),
                lambda params: nn.utils.clip_grad_norm_(params, 0.1, 1.0),
            ),
            (
                lambda m: m.accelerator.clip_grad_norm_(m.model.fc2.parameters(), 0.1),
                lambda params: nn.utils.clip_grad_norm_(params[-2:], 0.1),
            ),
        ):
            run.assert_same(ours(policy, native), end(policy, mine))


def test_loaders_and_models_that_are_not_trained() -> None:
    accelerator = Accelerator(policy="mixed_bfloat16", cpu=run.DEVICE.type == "cpu")
    loader = accelerator.prepare(DataLoader(run.batches(), batch_size=None))
    assert len(list(loader)) == run.STEPS
    teacher, model = run.network().eval(), run.network()
    optimizer = run.optimizer_of(model)
    model, optimizer, teacher = accelerator.prepare(model, optimizer, teacher)
    x = run.batches()[0][0].to(run.DEVICE)
    assert teacher(x).dtype == model(x).dtype == torch.float32
    plain = run.network().eval()(x)
    assert not torch.equal(plain, teacher(x))
    accelerator.free_memory()
    assert torch.equal(plain, teacher(x))
    assert accelerator.amp is accelerator.scaler is None


def test_evaluation_alone_runs_under_the_policy() -> None:
    for policy in ("mixed_bfloat16", "autocast_bfloat16", "model_bfloat16"):
        accelerator = Accelerator(policy=policy, cpu=run.DEVICE.type == "cpu")
        model, x = run.network().eval(), run.batches()[0][0].to(run.DEVICE)
        plain = model(x)
        model = accelerator.prepare(model)
        assert not torch.equal(plain, model(x).float())
        accelerator.free_memory()
        assert torch.equal(plain, model(x))


def test_second_training_of_the_same_model() -> None:
    mine = Run("model_bfloat16, master=split")
    mine.train(run.batches())
    mine.accelerator.free_memory()
    net = mine.model
    assert {param.dtype for param in net.parameters()} == {torch.float32}
    optimizer = run.optimizer_of(net)
    _, optimizer = mine.accelerator.prepare(net, optimizer)
    mine.optimizer = optimizer
    mine.train(run.batches())
    assert mine.accelerator.amp.state.skipped_steps == len(run.BAD)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_two_precisions_at_once_are_refused(precision: str) -> None:
    with pytest.raises(mp.BackendError, match="`mixed_precision` must be 'no'"):
        Accelerator(
            policy="mixed_bfloat16", cpu=run.DEVICE.type == "cpu", mixed_precision=precision
        )


def test_what_would_go_past_the_policy_is_refused() -> None:
    accelerator = Accelerator(policy="mixed_bfloat16", cpu=run.DEVICE.type == "cpu")
    model, other = run.network(), run.network()
    optimizer = run.optimizer_of(model)
    with pytest.raises(mp.BackendError, match="one model to train"):
        accelerator.prepare(optimizer)
    with pytest.raises(mp.BackendError, match="several into one"):
        accelerator.prepare(model, other, optimizer, run.optimizer_of(other))
    for call, given in (
        (accelerator.prepare_model, model),
        (accelerator.prepare_optimizer, optimizer),
    ):
        with pytest.raises(mp.BackendError, match="to one `accelerator"):
            call(given)
    native = accelerate.Accelerator(cpu=run.DEVICE.type == "cpu")
    native.prepare(run.network())
    with pytest.raises(mp.BackendError, match="before it prepares"):
        under_policy(native, "mixed_bfloat16")


def test_prepare_again_is_the_same_model() -> None:
    mine = Run("model_bfloat16")
    amp = mine.accelerator.amp
    mine.accelerator.prepare(mine.model, mine.optimizer)
    assert mine.accelerator.amp is amp
    other = run.network()
    with pytest.raises(mp.BackendError, match="free_memory"):
        mine.accelerator.prepare(other, run.optimizer_of(other))


@pytest.mark.parametrize("kind", ["DEEPSPEED", "MEGATRON_LM", "FSDP"])
def test_engines_of_their_own_are_refused(kind: str) -> None:
    native = accelerate.Accelerator(cpu=run.DEVICE.type == "cpu")
    distributed = accelerate.DistributedType(kind)
    native.state._shared_state["distributed_type"] = distributed
    native.state._shared_state["fsdp_plugin"] = None
    if kind == "FSDP":
        native.state._shared_state["fsdp_plugin"] = accelerate.FullyShardedDataParallelPlugin(
            fsdp_version=1
        )
    with pytest.raises(mp.BackendError, match=f"under {kind}"):
        under_policy(native, "mixed_bfloat16")
    assert type(native) is accelerate.Accelerator


def test_a_prepared_model_in_accelerates_own_loop_raises() -> None:
    accelerator = accelerate.Accelerator(cpu=run.DEVICE.type == "cpu")
    model = run.network()
    optimizer = run.optimizer_of(model)
    mp.prepare(model, optimizer, "mixed_float16")
    model, optimizer = accelerator.prepare(model, optimizer)
    before = [param.detach().clone() for param in model.parameters()]
    accelerator.backward(run.loss_of(model, *run.batches()[0]))
    with pytest.raises(mp.GuardError):
        optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))
