"""Lightning's Trainer under a policy, beside amp.step."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed: make hosts")

import host_run as run
import numpy as np
import torch
from lightning.pytorch.callbacks import (
    Callback,
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from torch.utils.data import DataLoader

import mpcore as mp
from mpcore_compat.lightning import PolicyMetrics, PolicyPrecision

# Lightning's advice (workers, log intervals), not its complaints.
pytestmark = pytest.mark.filterwarnings(
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
    "ignore:Checkpoint directory .* is not empty",
    "ignore:.*LeafSpec.*:FutureWarning",  # of its own use of torch
)


class Module(pl.LightningModule):
    def __init__(self, average: float | None = None) -> None:
        super().__init__()
        self.net = run.network()
        self.decay, self.average = average, None

    def training_step(self, batch: Any, index: int) -> Any:
        return run.loss_of(self.net, *batch)

    validation_step = test_step = training_step

    def predict_step(self, batch: Any, index: int) -> Any:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = run.optimizer_of(self.net)
        schedule = run.schedule_of(optimizer)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_train_start(self) -> None:
        if self.decay is not None:
            self.average = mp.EMA(self.trainer.precision_plugin.amp, self.decay)


class Look(Callback):
    """Takes what the run ended with, before the model is given back."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        amp = trainer.precision_plugin.amp
        rates = [each.scheduler.get_last_lr()[0] for each in trainer.lr_scheduler_configs]
        rate = rates[0] if rates else None
        found = run.end_of(amp, rate)
        found["weights"] = {
            name.removeprefix("net."): value for name, value in found["weights"].items()
        }
        if pl_module.average is not None:
            found["average"] = {
                name.removeprefix("net."): value
                for name, value in pl_module.average.weights().items()
            }
        self.found = found


def trainer(policy: Any, *callbacks: Any, **options: Any) -> Any:
    plain = {
        "accelerator": run.DEVICE.type,
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(each, ModelCheckpoint) for each in callbacks),
    }
    plugin = policy if isinstance(policy, PolicyPrecision) else PolicyPrecision(policy)
    return pl.Trainer(plugins=plugin, callbacks=list(callbacks), **plain | options)


def loader(data: list[Any]) -> Any:
    return DataLoader(data, batch_size=None)


def fitted(policy: str, data: list[Any], module: Any = None, **options: Any) -> dict[str, Any]:
    look = Look()
    resumed = options.pop("ckpt_path", None)
    made = trainer(run.policy_of(policy), look, *options.pop("callbacks", ()), **options)
    made.fit(module or Module(), loader(data), ckpt_path=resumed)
    return look.found


@pytest.mark.parametrize("policy", run.POLICIES)
def test_fit_ends_where_steps_end(policy: str) -> None:
    ours = run.own_run(policy, run.batches())
    assert ours["state"].skipped_steps == len(run.BAD)
    run.assert_same(ours, fitted(policy, run.batches()))


@pytest.mark.parametrize("policy", ["mixed_float16", "model_bfloat16, master=split"])
def test_clip_accumulation_schedule_and_average(policy: str) -> None:
    ours = run.own_run(policy, run.batches(), parts=2, clip=0.5, average=0.9)
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    run.assert_same(ours, fitted(policy, run.batches(), Module(average=0.9), **options))


def test_third_parts_are_within_the_noise_of_float32() -> None:
    run.assert_third_parts(lambda *given: fitted(*given, accumulate_grad_batches=3))


class Cut(Callback):
    """Saves in the middle, as ModelCheckpoint does."""

    def __init__(self, at: int, path: Any) -> None:
        self.at, self.path = at, path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.at:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("policy", run.POLICIES)
def test_resume_is_the_uninterrupted_run(policy: str, tmp_path: Any) -> None:
    whole = fitted(policy, run.batches(), callbacks=[Cut(10, tmp_path / "cut.ckpt")])
    kept = torch.load(tmp_path / "cut.ckpt", weights_only=True)
    assert "PolicyPrecision" in kept
    # The order of data is the host's: its loader begins anew, in the middle of the epoch.
    rest = run.batches()[10:] * 2
    run.assert_same(whole, fitted(policy, rest, ckpt_path=tmp_path / "cut.ckpt"))


def test_model_checkpoint_resumes_by_epochs(tmp_path: Any) -> None:
    policy, data = "model_bfloat16, master=split", run.batches()
    whole = fitted(policy, data, max_epochs=3)
    saver = ModelCheckpoint(tmp_path, save_last=True)
    fitted(policy, data, max_epochs=1, callbacks=[saver])
    last, saver = tmp_path / "last.ckpt", ModelCheckpoint(tmp_path, save_last=True)
    resumed = fitted(policy, data, max_epochs=3, ckpt_path=last, callbacks=[saver])
    run.assert_same(whole, resumed)


def test_after_fit_the_model_is_plain_and_holds_the_float32_values(tmp_path: Any) -> None:
    policy, module, look = run.policy_of("model_bfloat16, master=split"), Module(), Look()
    made = trainer(policy, look)
    made.fit(module, loader(run.batches()))
    assert {value.dtype for value in module.parameters()} == {torch.float32}
    for name, value in module.net.state_dict().items():
        if value.is_floating_point():
            assert value.numpy().tobytes() == look.found["weights"][name].tobytes(), name
    # What is saved now resumes as what was saved before the end.
    made.save_checkpoint(tmp_path / "end.ckpt")
    again = trainer(policy, look, max_epochs=2)
    again.fit(Module(), loader(run.batches()), ckpt_path=tmp_path / "end.ckpt")
    whole = fitted("model_bfloat16, master=split", run.batches(), max_epochs=2)
    run.assert_same(whole, look.found)


def test_second_fit_goes_on_with_the_scale() -> None:
    plugin, module, look = PolicyPrecision(run.policy_of("mixed_float16")), Module(), Look()
    trainer(plugin, look).fit(module, loader(run.batches()))
    first = look.found["state"]
    trainer(plugin, look).fit(module, loader(run.batches()))
    assert look.found["state"].skipped_steps == 2 * first.skipped_steps == 2 * len(run.BAD)
    # Weights too: the same as a prepared model that is given a new optimizer half way.
    net = run.network()
    state = None
    for _ in range(2):
        amp = mp.prepare(net, run.optimizer_of(net), run.policy_of("mixed_float16"))
        amp.state = amp.state if state is None else state
        schedule = amp.scheduler(run.schedule_of(amp.optimizer))
        for x, y in run.batches():
            amp.step(lambda x, y: run.loss_of(net, x, y), x, y)
            schedule.step()
        found, state = run.end_of(amp, schedule.get_last_lr()[0]), amp.state
        amp.release()
    run.assert_same(found, look.found)


def test_validation_inside_of_fit_moves_nothing() -> None:
    look = Look()
    made = trainer(run.policy_of("model_bfloat16"), look, val_check_interval=5)
    made.fit(Module(), loader(run.batches()), loader(run.batches()[:2]))
    run.assert_same(run.own_run("model_bfloat16", run.batches()), look.found)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "autocast_bfloat16", "model_bfloat16"])
def test_validate_test_and_predict_run_under_the_policy(policy: str, tmp_path: Any) -> None:
    data = run.batches()[:3]
    module, home = Module(), run.DEVICE
    amp = mp.prepare(module, run.optimizer_of(module), policy)
    module.eval()
    with torch.no_grad(), amp.autocast():
        wanted = [module.net(x.to(home)).cpu() for x, _ in data]
    amp.release()
    plain = [module.net(x.to(home)).detach().cpu() for x, _ in data]
    made = trainer(policy)
    given = made.predict(module, loader(data))
    assert all(map(torch.equal, wanted, [each.cpu() for each in given]))
    assert not all(map(torch.equal, wanted, plain))
    made.validate(module, loader(data), verbose=False)
    made.test(module, loader(data), verbose=False)
    home = next(module.parameters()).device  # the host's, where Lightning leaves it
    assert (
        all(  # given back
            torch.equal(one, module.net(x.to(home)).detach().cpu())
            for one, (x, _) in zip(plain, data, strict=True)
        )
        or home != run.DEVICE
    )  # whose kernels are others


def test_validate_takes_a_checkpoint_of_the_run(tmp_path: Any) -> None:
    saver = Cut(10, tmp_path / "cut.ckpt")
    fitted("model_bfloat16, master=split", run.batches(), callbacks=[saver])
    made = trainer(run.policy_of("model_bfloat16, master=split"))
    made.validate(Module(), loader(run.batches()[:2]), tmp_path / "cut.ckpt", verbose=False)


def test_metrics_are_the_true_norm_and_the_scale(tmp_path: Any) -> None:
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    made = trainer(
        run.policy_of("mixed_float16"), PolicyMetrics(), logger=logger, log_every_n_steps=1
    )
    made.fit(Module(), loader(run.batches()))
    logger.save()
    rows = np.genfromtxt(
        tmp_path / "lightning_logs/version_0/metrics.csv", delimiter=",", names=True
    )
    net = run.network()
    amp = mp.prepare(net, run.optimizer_of(net), run.policy_of("mixed_float16"))
    schedule = amp.scheduler(run.schedule_of(amp.optimizer))
    for row, (x, y) in zip(rows, run.batches(), strict=True):
        result = amp.step(lambda x, y: run.loss_of(net, x, y), x, y)
        schedule.step()
        assert row["grad_norm"] == pytest.approx(float(result.grad_norm), rel=1e-6, nan_ok=True)
        assert row["loss_scale"] == result.next_scale
    assert rows["skipped_steps"][-1] == len(run.BAD)


def test_hooks_see_true_gradients() -> None:
    seen = []

    class Hook(Callback):
        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            seen.append([p.grad.clone() for g in optimizer.param_groups for p in g["params"]])

    data = run.batches()[:2]
    fitted("model_float16", data, callbacks=[Hook()])
    net = run.network()
    amp = mp.prepare(net, run.optimizer_of(net), run.policy_of("model_float16"))
    result = amp.step(lambda x, y: run.loss_of(net, x, y), *data[0], keep_grads=True)
    assert all(map(torch.equal, seen[0], result.grads.values()))


def test_batches_left_out_by_the_user_leave_no_trace() -> None:
    class Picky(Module):
        def training_step(self, batch: Any, index: int) -> Any:
            return None if index % 5 == 4 else super().training_step(batch, index)

        def configure_optimizers(self) -> Any:  # Lightning moves a schedule by such batches too
            return run.optimizer_of(self.net)

    with pytest.warns(match="returned `None`"):
        found = fitted("mixed_float16", run.batches(), Picky())
    net = run.network()
    amp = mp.prepare(net, run.optimizer_of(net), run.policy_of("mixed_float16"))
    for index, (x, y) in enumerate(run.batches()):
        if index % 5 != 4:
            amp.step(lambda x, y: run.loss_of(net, x, y), x, y)
    run.assert_same(run.end_of(amp, None), found)


class Pair(pl.LightningModule):
    """Two optimizers by hand, as in a GAN; each moves by its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.automatic_optimization = run.network(), False

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(self.net.fc1.parameters(), 0.1),
            torch.optim.SGD(self.net.fc2.parameters(), 0.1),
        ]

    def training_step(self, batch: Any, index: int) -> None:
        for optimizer in self.optimizers():
            loss = run.loss_of(self.net, *batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()


def test_manual_optimization_with_two_optimizers() -> None:
    module, ends = Pair(), {}

    class End(Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            amp = trainer.precision_plugin.amp
            ends.update(weights=amp.weights(), state=amp.state)

    trainer(run.policy_of("mixed_float16"), End()).fit(module, loader(run.batches()))
    net = run.network()
    optimizers = [
        torch.optim.SGD(net.fc1.parameters(), 0.1),
        torch.optim.SGD(net.fc2.parameters(), 0.1),
    ]
    amp = mp.prepare(net, optimizers, run.policy_of("mixed_float16"))
    for x, y in run.batches():
        for name in amp.optimizers:
            amp.step(lambda x, y: run.loss_of(net, x, y), x, y, optimizer=name)
    assert ends["state"] == amp.state
    for name, value in amp.weights().items():
        assert value.tobytes() == ends["weights"][f"net.{name}"].tobytes(), name


@pytest.mark.parametrize(("kind", "limit"), [("norm", 0.5), ("value", 0.01)])
def test_clipping_by_hand_is_of_true_gradients(kind: str, limit: float) -> None:
    class Hand(Module):
        def training_step(self, batch: Any, index: int) -> None:
            optimizer, schedule = self.optimizers(), self.lr_schedulers()
            loss = run.loss_of(self.net, *batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=limit, gradient_clip_algorithm=kind)
            optimizer.step()
            schedule.step()

    by_hand = Hand()
    by_hand.automatic_optimization = False
    options = {"gradient_clip_val": limit, "gradient_clip_algorithm": kind}
    automatic = fitted("model_float16", run.batches(), **options)
    run.assert_same(automatic, fitted("model_float16", run.batches(), by_hand))


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "bf16-true", "16-true"])
def test_two_precisions_at_once_are_refused(precision: str) -> None:
    with pytest.raises(ValueError, match="Choose one"):
        trainer("mixed_bfloat16", precision=precision)


def test_value_clipping_is_done_on_true_gradients() -> None:
    options = {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}
    found = fitted("model_float16", run.batches(), **options)
    net = run.network()
    amp = mp.prepare(net, run.optimizer_of(net), run.policy_of("model_float16"))
    schedule = amp.scheduler(run.schedule_of(amp.optimizer))
    for x, y in run.batches():
        with amp.autocast():
            loss = run.loss_of(net, x, y)
        amp.backward(loss)
        amp.unscale()
        params = [p for g in amp.optimizer.param_groups for p in g["params"]]
        torch.nn.utils.clip_grad_value_(params, 0.01)
        amp.apply()
        schedule.step()
    run.assert_same(run.end_of(amp, schedule.get_last_lr()[0]), found)


@pytest.mark.filterwarnings("ignore:SWA is currently only supported every epoch")
@pytest.mark.parametrize(
    "kind",
    [lambda: EMAWeightAveraging(decay=0.9), lambda: StochasticWeightAveraging(1e-3, 1)],
    ids=["ema", "swa"],
)
def test_lightnings_own_averages(kind: Any) -> None:
    """By layer they are what the model ends with, statistics of a last pass included."""
    data, module, average = run.batches(bad=(3,)), Module(), kind()
    made = trainer(run.policy_of("mixed_float16"), average, max_epochs=3)
    made.fit(module, loader([batch for batch in data if batch[0].isfinite().all()]))
    mean = average._average_model
    for one, two in zip(module.parameters(), mean.parameters(), strict=True):
        assert torch.equal(one.cpu(), two.cpu())
    assert all(value.isfinite().all() for value in module.state_dict().values())
    assert int(module.net.norm.num_batches_tracked) > 0
    with pytest.raises(mp.BackendError, match=r"use `mp\.EMA`"):
        trainer(run.policy_of("model_bfloat16"), kind(), max_epochs=3).fit(Module(), loader(data))


def test_the_plugin_can_be_sent_to_other_processes() -> None:
    sent = pickle.loads(pickle.dumps(PolicyPrecision("model_bfloat16, master=split")))
    run.assert_same(
        fitted("model_bfloat16, master=split", run.batches()),
        _fitted_by(sent, run.batches()),
    )


def _fitted_by(plugin: Any, data: list[Any]) -> dict[str, Any]:
    look = Look()
    trainer(plugin, look).fit(Module(), loader(data))
    return look.found


def test_interrupted_fit_gives_the_model_back() -> None:
    class Stop(Callback):
        def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
            if trainer.global_step == 5:
                msg = "stop"
                raise RuntimeError(msg)

    module = Module()
    with pytest.raises(RuntimeError, match="stop"):
        trainer(run.policy_of("model_bfloat16"), Stop()).fit(module, loader(run.batches()))
    assert {value.dtype for value in module.parameters()} == {torch.float32}
    mp.prepare(module, run.optimizer_of(module), "mixed_bfloat16").release()


def test_a_prepared_model_without_the_plugin_raises() -> None:
    class Own(Module):
        def configure_optimizers(self) -> Any:
            optimizer = run.optimizer_of(self.net)
            mp.prepare(self.net, optimizer, "mixed_float16")
            return optimizer

    module = Own()
    before = [param.detach().clone() for param in module.net.parameters()]
    plain = pl.Trainer(
        accelerator=run.DEVICE.type,
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    with pytest.raises(mp.GuardError, match="optimizer"):
        plain.fit(module, loader(run.batches()))
    after = [param.to(run.DEVICE) for param in module.net.parameters()]
    assert all(map(torch.equal, before, after))
