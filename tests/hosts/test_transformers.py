"""HF Trainer under a policy, beside amp.step."""

from __future__ import annotations

from typing import Any

import pytest

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: make hosts"
)
accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: make hosts")

import host_run as run
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import mpcore as mp
from mpcore_compat.transformers import train_under


@pytest.fixture(autouse=True)
def no_state() -> Any:
    """Accelerate keeps its state in the class: each test begins with none."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()


class Wrapped(nn.Module):
    """The toy in the form that the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.net = run.network()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": run.loss_of(self.net, x, labels)}


class Stop(TrainerCallback):
    """Ends the run in the middle, with a checkpoint."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if state.global_step == self.at:
            control.should_save = control.should_training_stop = True
        return control


class Average(TrainerCallback):
    """Begins an average once the Trainer has prepared the model."""

    def __init__(self) -> None:
        self.trainer: Any = None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.ema = mp.EMA(self.trainer.accelerator.amp, 0.9)


def trainer(policy: Any, folder: Any, *callbacks: Any, **options: Any) -> Any:
    model = Wrapped()
    optimizer = run.optimizer_of(model)
    plain = {
        "max_grad_norm": 0.0,
        "per_device_train_batch_size": 1,
        "num_train_epochs": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_strategy": "no",
        "use_cpu": run.DEVICE.type == "cpu",
        "train_sampling_strategy": "sequential",
    }
    made = Trainer(
        model,
        TrainingArguments(str(folder), **plain | options),
        data_collator=lambda items: items[0],
        train_dataset=[{"x": x, "labels": y} for x, y in run.batches()],
        eval_dataset=[{"x": x, "labels": y} for x, y in run.batches()[:2]],
        optimizers=(optimizer, run.schedule_of(optimizer)),
        callbacks=list(callbacks),
    )
    return made if policy is None else train_under(made, policy)


def end_of(made: Any) -> dict[str, Any]:
    found = run.end_of(made.accelerator.amp, made.lr_scheduler.get_last_lr()[0])
    weights = found["weights"].items()
    found["weights"] = {name.removeprefix("net."): value for name, value in weights}
    return found


@pytest.mark.parametrize("policy", run.POLICIES)
def test_train_ends_where_steps_end(policy: str, tmp_path: Any) -> None:
    made = trainer(run.policy_of(policy), tmp_path)
    made.train()
    run.assert_same(run.own_run(policy, run.batches()), end_of(made))


@pytest.mark.parametrize("policy", ["mixed_float16", "model_bfloat16, master=split"])
def test_clip_accumulation_and_average(policy: str, tmp_path: Any) -> None:
    average = Average()
    options = {"max_grad_norm": 0.5, "gradient_accumulation_steps": 2}
    made = trainer(run.policy_of(policy), tmp_path, average, **options)
    average.trainer = made
    made.train()
    ours = run.own_run(policy, run.batches(), parts=2, clip=0.5, average=0.9)
    weights = average.ema.weights().items()
    mine = {name.removeprefix("net."): value for name, value in weights}
    run.assert_same(ours, end_of(made) | {"average": mine})


def test_third_parts_are_within_the_noise_of_float32(tmp_path: Any) -> None:
    def end(policy: str, data: list[Any]) -> dict[str, Any]:
        AcceleratorState._reset_state(reset_partial_state=True)
        made = trainer(run.policy_of(policy), tmp_path, gradient_accumulation_steps=3)
        made.train_dataset = [{"x": x, "labels": y} for x, y in data]
        made.train()
        return end_of(made)

    run.assert_third_parts(end)


@pytest.mark.parametrize("policy", run.POLICIES)
def test_resume_is_the_uninterrupted_run(policy: str, tmp_path: Any) -> None:
    trainer(run.policy_of(policy), tmp_path, Stop(10)).train()
    AcceleratorState._reset_state(reset_partial_state=True)
    second = trainer(run.policy_of(policy), tmp_path)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    run.assert_same(run.own_run(policy, run.batches()), end_of(second))


def test_logs_have_the_true_norm_and_the_scale(tmp_path: Any) -> None:
    seen: list[Any] = []

    class Report(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            seen.append(dict(logs))

    options = {"logging_strategy": "steps", "logging_steps": 1, "max_grad_norm": 0.5}
    made = trainer(run.policy_of("model_float16"), tmp_path, Report(), **options)
    made.train()
    net = run.network()
    amp = mp.prepare(net, run.optimizer_of(net), run.policy_of("model_float16"))
    schedule = amp.scheduler(run.schedule_of(amp.optimizer))
    rows = [row for row in made.state.log_history if "grad_norm" in row]
    for row, report, (x, y) in zip(rows, seen[: run.STEPS], run.batches(), strict=True):
        result = amp.step(lambda x, y: run.loss_of(net, x, y), x, y, clip_norm=0.5)
        schedule.step()
        norm = pytest.approx(float(result.grad_norm), rel=1e-6, nan_ok=True)
        assert row["grad_norm"] == norm
        assert report["grad_norm"] == norm
        assert row["loss_scale"] == report["loss_scale"] == result.next_scale
    assert rows[-1]["skipped_steps"] == len(run.BAD)


def test_second_train_and_evaluate(tmp_path: Any) -> None:
    made = trainer(run.policy_of("model_bfloat16, master=split"), tmp_path)
    made.train()
    inside = made.evaluate()["eval_loss"]
    assert made.accelerator.amp.state.skipped_steps == len(run.BAD)
    made.train()
    assert made.accelerator.amp.state.skipped_steps == len(run.BAD)  # begun anew
    assert inside != made.evaluate()["eval_loss"]
    made.accelerator.free_memory()
    assert {param.dtype for param in made.model.parameters()} == {torch.float32}


def test_a_new_accelerator_is_under_the_policy_too(tmp_path: Any) -> None:
    made = trainer(run.policy_of("mixed_float16"), tmp_path)
    made.accelerator.free_memory()
    made.create_accelerator_and_postprocess()  # as a hyperparameter search does for each trial
    made.train()
    run.assert_same(run.own_run("mixed_float16", run.batches()), end_of(made))


def test_evaluate_alone_runs_under_the_policy(tmp_path: Any) -> None:
    plain = trainer(None, tmp_path).evaluate()["eval_loss"]
    AcceleratorState._reset_state(reset_partial_state=True)
    for policy in ("mixed_bfloat16", "autocast_bfloat16", "model_bfloat16"):
        made = trainer(policy, tmp_path)
        assert made.evaluate()["eval_loss"] != plain
        assert made.predict(made.eval_dataset).metrics["test_loss"] != plain
        AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("name", ["fp16", "bf16", "bf16_full_eval"])
def test_two_precisions_at_once_are_refused(name: str, tmp_path: Any) -> None:
    try:
        made = trainer(None, tmp_path, **{name: True})
    except ValueError as error:  # of Accelerate, where the device has none
        pytest.skip(str(error))
    with pytest.raises(mp.BackendError, match=f"`{name}` must be False"):
        train_under(made, "mixed_bfloat16")


def test_a_prepared_model_without_the_call_raises(tmp_path: Any) -> None:
    made = trainer(None, tmp_path, remove_unused_columns=False)
    mp.prepare(made.model, made.optimizer, "mixed_float16")
    before = [param.detach().clone() for param in made.model.parameters()]
    with pytest.raises(mp.GuardError):
        made.train()
    assert all(map(torch.equal, before, made.model.parameters()))


def test_a_model_of_the_library_learns_and_keeps_its_columns(tmp_path: Any) -> None:
    config = transformers.BertConfig(
        vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    draw = torch.Generator().manual_seed(0)
    words = torch.randint(16, (64, 8), generator=draw)
    data = [
        {"input_ids": row, "labels": (row[0] > 7).long(), "not_of_the_model": 1} for row in words
    ]
    args = TrainingArguments(
        str(tmp_path),
        num_train_epochs=12,
        learning_rate=1e-2,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="epoch",
        save_strategy="no",
        use_cpu=run.DEVICE.type == "cpu",
    )
    made = train_under(Trainer(model, args, train_dataset=data), "mixed_bfloat16")
    made.train()
    losses = [row["loss"] for row in made.state.log_history if "loss" in row]
    assert losses[-1] < 0.2 < losses[0]


def lora(policy: str, folder: Any, *callbacks: Any) -> Any:
    """A Trainer of adapters over a frozen base in bfloat16."""
    peft = pytest.importorskip("peft", reason="peft is not installed: make hosts")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    base = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    words = torch.randint(32, (80, 8), generator=torch.Generator().manual_seed(0))
    args = TrainingArguments(
        str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        use_cpu=run.DEVICE.type == "cpu",
    )
    data = [{"input_ids": row, "labels": row} for row in words]
    made = Trainer(model, args, train_dataset=data, callbacks=list(callbacks))
    return train_under(made, policy)


# Of the libraries, in their own calls of each other.
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers", "ignore::UserWarning:peft")
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "model_bfloat16"])
def test_adapters_over_a_base_in_bfloat16_train_and_resume(policy: str, tmp_path: Any) -> None:
    whole = lora(policy, tmp_path)
    base = {
        name: param.detach().clone()
        for name, param in whole.model.named_parameters()
        if not param.requires_grad
    }
    assert {param.dtype for param in base.values()} == {torch.bfloat16}
    places = {name: param.data_ptr() for name, param in whole.model.named_parameters()}
    before = whole.evaluate(whole.train_dataset)["eval_loss"]
    whole.train()
    AcceleratorState._reset_state(reset_partial_state=True)
    lora(policy, tmp_path, Stop(10)).train()
    AcceleratorState._reset_state(reset_partial_state=True)
    second = lora(policy, tmp_path)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    run.assert_same(end_of(whole), end_of(second))
    after = dict(whole.model.named_parameters())
    for name, param in base.items():  # the base has kept dtype and bits
        assert after[name].dtype == torch.bfloat16
        assert torch.equal(after[name], param), name
        assert after[name].data_ptr() == places[name], name  # and its memory
    assert whole.evaluate(whole.train_dataset)["eval_loss"] < before
