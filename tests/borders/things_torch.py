"""What people do to a prepared torch model; see ``fuzz``."""

from __future__ import annotations

import copy
import functools
import io
import os
import pickle
import signal
import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from fuzz import COMMON, Case, Run, Things, fresh, main, planted
from safetensors import torch as safetensors
from torch import nn
from torch.nn import functional as F  # noqa: N812, as torch's own documents

import mpcore as mp

thing = Things(COMMON)


# --- The world


class Block(nn.Module):
    """Attention and two products, as in every transformer."""

    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        h = self.inp(x).unsqueeze(1).expand(-1, 3, -1)
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v))
        return self.head(h.mean(1))


def _mlp():
    return nn.Sequential(
        OrderedDict(
            fc1=nn.Linear(8, 16), bn=nn.BatchNorm1d(16), act=nn.ReLU(), fc2=nn.Linear(16, 4)
        )
    )


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 6, 3, padding=1)
        self.bn = nn.BatchNorm1d(6)
        self.fc = nn.utils.parametrizations.spectral_norm(nn.Linear(48, 4))

    def forward(self, x):
        return self.fc(F.relu(self.bn(self.conv(x.unsqueeze(1)))).flatten(1))


class TorchWorld:
    models = ("mlp", "block", "conv")
    policies = (
        "mixed_float16",
        "mixed_bfloat16",
        "autocast_bfloat16",
        "model_bfloat16",
        "model_bfloat16, master=split",
        "model_bfloat16, master=kahan",
        "model_float16",
    )
    optimizers = ("sgd", "adam", "adamw_foreach")
    bad = (frozenset({2}), frozenset({1, 4}), frozenset({3, 7}), frozenset({5}))
    steps = 8

    def build(self, case: Case) -> Run:
        torch.manual_seed(0)
        model = {"mlp": _mlp, "block": Block, "conv": Conv}[case.model]()
        return self.prepare(case, model)

    def prepare(self, case: Case, model: nn.Module) -> Run:
        params = model.parameters()
        optimizer = {
            "sgd": lambda: torch.optim.SGD(params, 0.05, momentum=0.9),
            "adam": lambda: torch.optim.Adam(params, 1e-2),
            "adamw_foreach": lambda: torch.optim.AdamW(params, 1e-2, foreach=True),
        }[case.optimizer]()
        amp = mp.prepare(model, optimizer, case.policy)
        return Run(case, amp, model, optimizer, loss_of(model), batches(case), self)

    def digest(self, run: Run) -> dict[str, bytes]:
        found = {f"weight {k}": v.tobytes() for k, v in run.amp.weights().items()}
        for name, buffer in run.model.named_buffers():
            found[f"buffer {name}"] = _bytes(buffer)
        for number, slots in enumerate(run.optimizer.state.values()):
            for key, value in slots.items():
                if isinstance(value, torch.Tensor):
                    found[f"slot {number} {key}"] = _bytes(value)
        found["scale"] = repr(tuple(float(x) for x in run.amp.state)).encode()
        return found

    def keep_buffers(self, run: Run):
        kept = [(buffer, buffer.clone()) for buffer in run.model.buffers()]

        def put_back():
            with torch.no_grad():
                for buffer, before in kept:
                    buffer.copy_(before)

        return put_back


def _bytes(tensor):
    plain = tensor.detach().contiguous()
    return bytes(str(plain.dtype), "ascii") + plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def loss_of(model):
    def loss_fn(x, y, boost):
        return F.cross_entropy(model(x).float(), y) * boost.max()

    return loss_fn


def batches(case: Case):
    rng = np.random.default_rng(1)
    made = []
    for number in range(8):
        x = torch.from_numpy(rng.normal(size=(8, 8)).astype("float32"))
        y = torch.from_numpy(rng.integers(0, 4, size=8))
        boost = torch.full((8,), float("inf") if number in case.bad else 1.0)
        made.append((x, y, boost))
    return made


def plain(run: Run):
    x, y, boost = run.batch
    return run.loss_fn(x, y, boost)


# --- Another loop trains it


@thing(trains=True)
def own_loop(run):
    run.optimizer.zero_grad()
    plain(run).backward()
    run.optimizer.step()


@thing(trains=True)
def own_loop_clipped(run):
    run.optimizer.zero_grad()
    plain(run).backward()
    nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    run.optimizer.step()


@thing(trains=True)
def own_loop_in_autocast(run):
    run.optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = plain(run)
    loss.backward()
    run.optimizer.step()


@thing(trains=True)
def own_loop_with_a_closure(run):
    def closure():
        run.optimizer.zero_grad()
        loss = plain(run)
        loss.backward()
        return loss

    run.optimizer.step(closure)


@thing(trains=True)
def native_grad_scaler(run):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(plain(run)).backward()
    scaler.step(run.optimizer)
    scaler.update()


@thing(trains=True)
def unbound_step(run):
    plain(run).backward()
    type(run.optimizer).step(run.optimizer)


@thing(trains=True)
def second_optimizer(run):
    other = torch.optim.SGD(run.model.parameters(), 0.05)
    other.zero_grad()
    plain(run).backward()
    other.step()


@thing(trains=True)
def copied_optimizer(run):
    other = copy.copy(run.optimizer)
    plain(run).backward()
    other.step()


@thing(trains=True)
def scheduler_wraps_the_step(run):
    torch.optim.lr_scheduler.ConstantLR(run.optimizer, 1.0, 1)
    plain(run).backward()
    run.optimizer.step()


@thing(trains=True)
def amp_backward_then_native_step(run):
    with run.amp.autocast():
        loss = plain(run)
    run.amp.backward(loss)
    try:
        run.optimizer.step()
    finally:
        run.amp.abort_step()


@thing(trains=True, fits=lambda case: case.clip is None and case.micro == 1)
def amp_loop(run):
    with run.amp.autocast():
        loss = plain(run)
    run.amp.backward(loss)
    run.amp.apply()


def _clips_in_float32(case):
    # by="model" the gradients have 16 bits, and so has a clip of one's own.
    return case.micro == 1 and case.clip is not None and not case.policy.startswith("model")


@thing(trains=True, fits=_clips_in_float32)
def amp_loop_clipped_natively(run):
    with run.amp.autocast():
        loss = plain(run)
    try:
        run.amp.backward(loss)
        nn.utils.clip_grad_norm_(run.model.parameters(), run.case.clip)
        run.amp.apply()
    except mp.MpcoreError:
        run.amp.abort_step()
        raise


@thing(trains=True, fits=lambda case: case.micro == 1 and case.clip is None)
def amp_loop_without_autocast(run):
    try:
        run.amp.backward(plain(run))
        run.amp.apply()
    except mp.MpcoreError:
        run.amp.abort_step()
        raise


@thing(trains=True, fits=lambda case: case.micro == 1 and case.clip is None)
def loss_scaled_by_hand(run):
    scaler = torch.amp.GradScaler("cpu")
    try:
        run.amp.backward(scaler.scale(plain(run)))
        scaler.step(run.optimizer)
        raise planted(RuntimeError("two scales overflow: the native one has left the step out"))
    finally:
        run.amp.abort_step()


@thing()
def apply_without_backward(run):
    run.amp.apply()


@thing()
def step_inside_a_step(run):
    def nested(*batch):
        run.amp.step(run.loss_fn, *batch)
        return run.loss_fn(*batch)

    run.amp.step(nested, *run.batch)


@thing()
def old_gradients_left(run):
    for param in run.model.parameters():
        param.grad = torch.full_like(param, 7.0)


@thing()
def loss_of_another_model(run):
    other = _mlp()
    run.amp.step(loss_of(other), *run.batch)


@thing()
def loss_detached(run):
    run.amp.step(lambda *batch: run.loss_fn(*batch).detach(), *run.batch)


@thing()
def step_without_gradients(run):
    with torch.no_grad():
        run.amp.step(run.loss_fn, *run.batch)


@thing()
def step_in_inference_mode(run):
    with torch.inference_mode():
        run.amp.step(run.loss_fn, *run.batch)


@thing(trains=True)
def step_in_outer_autocast(run):
    with torch.autocast("cpu", torch.bfloat16):
        run.step()
    run.index -= 1


@thing(trains=True)
def optimizer_of_one_line_each(run):
    hooks = [
        param.register_post_accumulate_grad_hook(lambda p: torch.optim.SGD([p], 0.01).step())
        for param in run.model.parameters()
    ]
    try:
        plain(run).backward()
    finally:
        for hook in hooks:
            hook.remove()


@thing(trains=True)
def gradients_by_hand(run):
    params = list(run.model.parameters())
    for param, grad in zip(params, torch.autograd.grad(plain(run), params), strict=True):
        param.grad = grad
    run.optimizer.step()


@thing(trains=True)
def own_step_compiled(run):
    step = torch.compile(run.optimizer.step, backend="eager")
    plain(run).backward()
    step()


@thing(trains=True, fits=lambda case: case.micro == 1 and case.clip is None)
def zero_grad_between(run):
    with run.amp.autocast():
        loss = plain(run)
    try:
        run.amp.backward(loss)
        run.optimizer.zero_grad()
        run.amp.apply()
    except mp.MpcoreError:
        run.amp.abort_step()
        raise


@thing(trains=True)
def data_parallel(run):
    clip, micro = run.case.clip, run.case.micro
    outer = nn.DataParallel(run.model)
    run.amp.step(loss_of(outer), *run.batch, clip_norm=clip, micro_batches=micro)


@thing(trains=True)
def another_default_dtype(run):
    torch.set_default_dtype(torch.float64)
    try:
        run.step()
        run.index -= 1
    finally:
        torch.set_default_dtype(torch.float32)


@thing()
def vector_and_back(run):
    params = list(run.model.parameters())
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(params), params)


@thing(fits=lambda case: case.model != "conv")
def parameter_replaced(run):
    layer = first_linear(run.model)
    layer.weight = nn.Parameter(layer.weight.detach().clone())


# --- The plan is changed


@thing()
def half(run):
    run.model.half()


@thing()
def bfloat16(run):
    run.model.bfloat16()


@thing()
def float32(run):
    run.model.float()


@thing()
def double(run):
    run.model.double()


@thing()
def to_dtype(run):
    run.model.to(torch.float16)


@thing()
def to_device_and_dtype(run):
    run.model.to("cpu", torch.bfloat16)


@thing()
def to_like_a_tensor(run):
    run.model.to(torch.zeros(1, dtype=torch.float64))


@thing()
def to_the_same_device(run):
    run.model.to("cpu")


@thing()
def cpu(run):
    run.model.cpu()


@thing()
def layer_to_half(run):
    first_linear(run.model).half()


@thing()
def layer_to_float(run):
    first_linear(run.model).float()


@thing()
def apply_half(run):
    run.model.apply(lambda module: module.half())


def first_linear(model):
    return next(m for m in model.modules() if isinstance(m, nn.Linear))


def first_path(model):
    return next(p for p, m in model.named_modules() if isinstance(m, nn.Linear))


def swap(model, path, new):
    home, _, name = path.rpartition(".")
    setattr(model.get_submodule(home), name, new)


@thing(fits=lambda case: case.model != "conv")
def swapped_layer(run):
    path = first_path(run.model)
    old = run.model.get_submodule(path)
    swap(run.model, path, nn.Linear(old.in_features, old.out_features))


@thing(fits=lambda case: case.model == "mlp")
def swapped_by_index(run):
    run.model[0] = nn.Linear(8, 16)


@thing()
def forward_replaced(run):
    layer = first_linear(run.model)
    layer.forward = lambda x: F.linear(x.float(), layer.weight.float(), layer.bias.float())


@thing()
def forward_wrapped(run):
    layer = first_linear(run.model)
    before = layer.forward

    @functools.wraps(before)
    def logged(*args, **kwargs):
        return before(*args, **kwargs)

    layer.forward = logged


@thing()
def root_forward_wrapped(run):
    before = run.model.forward
    run.model.forward = lambda *args, **kwargs: before(*args, **kwargs)


@thing()
def forward_hook(run):
    first_linear(run.model).register_forward_hook(lambda module, args, out: out)


@thing()
def forward_pre_hook(run):
    first_linear(run.model).register_forward_pre_hook(lambda module, args: None)


@thing(fits=lambda case: case.model != "conv")
def quantized(run):
    run.keep["copy"] = torch.ao.quantization.quantize_dynamic(run.model, {nn.Linear})


@thing(fits=lambda case: case.model != "conv")
def quantized_in_place(run):
    torch.ao.quantization.quantize_dynamic(run.model, {nn.Linear}, inplace=True)


@thing()
def scripted(run):
    torch.jit.script(run.model)


@thing()
def frozen(run):
    for param in run.model.parameters():
        param.requires_grad_(False)
    try:
        run.amp.step(run.loss_fn, *run.batch)
    finally:
        for param in run.model.parameters():
            param.requires_grad_(True)


@thing()
def evaluated(run):
    run.model.eval()
    with torch.no_grad():
        run.model(run.batch[0])
    run.model.train()


# --- Prepared again


@thing()
def prepared_with_another_optimizer(run):
    mp.prepare(run.model, torch.optim.SGD(run.model.parameters(), 0.1), run.case.policy)


# --- Wrapped and copied


@thing(trains=True)
def wrapped_in_a_module(run):
    outer = nn.Sequential(run.model)
    clip, micro = run.case.clip, run.case.micro
    run.amp.step(loss_of(outer), *run.batch, clip_norm=clip, micro_batches=micro)


@thing()
def averaged_model(run):
    average = torch.optim.swa_utils.AveragedModel(run.model)
    average.update_parameters(run.model)


@thing(trains=True)
def copied_and_trained_natively(run):
    other = copy.deepcopy(run.model)
    optimizer = torch.optim.SGD(other.parameters(), 0.05)
    loss_of(other)(*run.batch).backward()
    optimizer.step()
    run.step()  # the original must not have noticed
    run.index -= 1


@thing()
def pickled(run):
    other = pickle.loads(pickle.dumps(run.model))
    same_output(run, other)


@thing()
def saved_whole(run):
    file = io.BytesIO()
    torch.save(run.model, file)
    file.seek(0)
    same_output(run, torch.load(file, weights_only=False))


@thing()
def copied_deep(run):
    same_output(run, copy.deepcopy(run.model))


@thing()
def copied_shallow(run):
    same_output(run, copy.copy(run.model))


def same_output(run, other):
    run.model.eval()
    other.eval()
    with torch.no_grad():
        left, right = run.model(run.batch[0]), other(run.batch[0])
    run.model.train()
    if left.dtype != right.dtype or not torch.equal(left, right):
        msg = "the copy computes something else, without a word"
        raise AssertionError(msg)


@thing()
def amp_copied(run):
    copy.deepcopy(run.amp)


# --- Saved and loaded


@thing()
def own_state_loaded_back(run):
    run.model.load_state_dict(run.model.state_dict())


@thing()
def optimizer_state_loaded_back(run):
    run.optimizer.load_state_dict(run.optimizer.state_dict())


@thing()
def deep_copied_states_loaded_back(run):
    model, optimizer = (
        copy.deepcopy(run.model.state_dict()),
        copy.deepcopy(run.optimizer.state_dict()),
    )
    run.model.load_state_dict(model)
    run.optimizer.load_state_dict(optimizer)


@thing()
def resumed_by_three_dicts(run):
    file = io.BytesIO()
    torch.save([run.model.state_dict(), run.optimizer.state_dict(), run.amp.state_dict()], file)
    file.seek(0)
    model, optimizer, amp = torch.load(file)
    new = fresh(run)
    new.model.load_state_dict(model)
    new.optimizer.load_state_dict(optimizer)
    new.amp.load_state_dict(amp)
    return new


@thing()
def resumed_in_another_order(run):
    states = copy.deepcopy(
        [run.amp.state_dict(), run.optimizer.state_dict(), run.model.state_dict()]
    )
    new = fresh(run)
    for part, state in zip((new.amp, new.optimizer, new.model), states, strict=True):
        part.load_state_dict(state)
    return new


@thing()
def resumed_from_files(run):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.amp")
        run.amp.save(path, weights=True)
        state = copy.deepcopy(run.optimizer.state_dict())
        new = fresh(run)
        new.model.load_state_dict(run.model.state_dict())  # its counters, which are no weights
        new.amp.load(path)
        new.optimizer.load_state_dict(state)
    return new


@thing(warns=True)
def resumed_without_amp(run):
    """The host's checkpoint alone: equal where nothing is lost, else somebody must say so."""
    model, optimizer = (
        copy.deepcopy(run.model.state_dict()),
        copy.deepcopy(run.optimizer.state_dict()),
    )
    new = fresh(run)
    new.model.load_state_dict(model)
    new.optimizer.load_state_dict(optimizer)
    new.amp.state = run.amp.state
    return new


@thing(warns=True)
def resumed_from_safetensors(run):
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "net.safetensors"))
        safetensors.save_model(run.model, path)
        new = fresh(run)
        safetensors.load_model(new.model, path)
    new.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    new.amp.state = run.amp.state
    return new


@thing()
def file_of_another_kind(run):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.amp")
        path.write_text("{}", encoding="utf-8")
        run.amp.load(path)


# --- Interrupted


@thing()
def signal_in_the_forward(run):
    handle = first_linear(run.model).register_forward_hook(
        lambda *_: os.kill(os.getpid(), signal.SIGINT)
    )
    try:
        run.step()
    finally:
        handle.remove()
        run.index = run.case.at


@thing()
def signal_in_the_backward(run):
    once = []

    def kill(grad):
        if not once:
            once.append(1)
            os.kill(os.getpid(), signal.SIGINT)

    handle = next(run.model.parameters()).register_hook(kill)
    try:
        run.step()
    finally:
        handle.remove()
        run.index = run.case.at


@thing()
def error_in_the_backward(run):
    def broken(grad):
        raise planted(RuntimeError("out of memory"))

    handle = next(run.model.parameters()).register_hook(broken)
    try:
        run.step()
    finally:
        handle.remove()
        run.index = run.case.at


@thing(fits=lambda case: case.at not in case.bad)
def error_before_the_update(run):
    def broken(*_):
        raise planted(MemoryError())

    handle = run.optimizer.register_step_pre_hook(broken)
    try:
        run.step()
    finally:
        handle.remove()
        run.index = run.case.at


@thing(fits=lambda case: case.at not in case.bad)
def signal_before_the_update(run):
    handle = run.optimizer.register_step_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        run.step()
    finally:
        handle.remove()
        run.index = run.case.at


@thing(fits=lambda case: case.at not in case.bad)
def signal_after_the_update(run):
    handle = run.optimizer.register_step_post_hook(lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        run.step()
    finally:
        handle.remove()
        run.index = run.case.at


# --- Mistakes


@thing()
def wrong_batch(run):
    run.amp.step(run.loss_fn, run.batch[0])


@thing()
def wrong_shape(run):
    x, y, boost = run.batch
    run.amp.step(run.loss_fn, x[:, :3], y, boost)


@thing()
def loss_as_argument(run):
    run.amp.step(torch.zeros((), requires_grad=True))


@thing()
def loss_of_each_row(run):
    def rows(x, y, boost):
        return F.cross_entropy(run.model(x).float(), y, reduction="none")

    run.amp.step(rows, *run.batch)


@thing()
def unknown_optimizer(run):
    run.amp.step(run.loss_fn, *run.batch, optimizer="other")


WORLD = TorchWorld()

if __name__ == "__main__":
    main(WORLD, thing)
