"""One framework's process: runs cases of facts and leaves what came out.

``python fact_drive.py torch|mindspore`` reads lines of JSON, a job each: a script with a function
for each case, what the cases are, and where the results go.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from fact_inputs import array

STEPS, EPOCHS = 6, 24
_RATES = (0.1, 0.05)
_SIZES = (3.0, 1.0, 0.2, 2.0, 0.1, 0.5)


def _weights(name: str, shape: tuple[int, ...], size: int = 1) -> np.ndarray:
    number = sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 2**31
    draw = np.random.RandomState(number)
    if "running_var" in name:
        return draw.uniform(0.5, 1.5, shape).astype(np.float32)
    if shape and "norm" not in name and len(shape) == 1:
        return draw.uniform(0.5, 1.5, shape).astype(np.float32)
    return (draw.randn(*shape) * 0.3).astype(np.float32)


def _cotangent(shape: tuple[int, ...], place: int) -> np.ndarray:
    return np.random.RandomState(7 + place).randn(*shape)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [part for item in value for part in _flat(item)]
    return [value]


def _gradient_at(weight: np.ndarray, step: int, place: int) -> np.ndarray:
    draw = np.random.RandomState(step * 31 + place)
    size = _SIZES[step % len(_SIZES)]  # averages of squares have to fall, too
    return (size * (0.3 * weight + draw.randn(*weight.shape))).astype(np.float32)


class Torch:
    """Runs cases in torch."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch = torch

    def seed(self) -> None:
        self.torch.manual_seed(0)

    def tensor(self, value: np.ndarray) -> Any:
        return self.torch.tensor(value)

    def array(self, value: Any) -> tuple[str, np.ndarray]:
        torch = self.torch
        if isinstance(value, torch.Tensor):
            kind = str(value.dtype).rpartition(".")[2]
            plain = value.detach()
            plain = plain.resolve_conj()
            return kind, (plain.float() if kind == "bfloat16" else plain).numpy(force=True)
        if isinstance(value, torch.dtype):
            return "dtype", np.array(str(value).rpartition(".")[2])
        return type(value).__name__, np.asarray(value)

    def function(self, case: Any, run: Any, inputs: list[Any]) -> dict[str, Any]:
        torch = self.torch
        leaves = [inputs[k] for k in _learned(case, inputs)]
        for leaf in leaves:
            leaf.requires_grad_()
        outs = _flat(run(*inputs))
        grads = None
        total = 0.0
        for place, out in enumerate(outs):
            if isinstance(out, torch.Tensor) and out.requires_grad:
                out = torch.view_as_real(out.resolve_conj()) if out.is_complex() else out
                weight = torch.tensor(_cotangent(tuple(out.shape), place), dtype=out.dtype)
                total = total + (out * weight).sum().double()
        if case["grads"] and isinstance(total, torch.Tensor) and leaves:
            found = torch.autograd.grad(total, leaves, allow_unused=True)
            pairs = zip(found, leaves, strict=True)
            grads = [self.array(torch.zeros_like(x) if g is None else g) for g, x in pairs]
        return {
            "values": [self.array(out) for out in outs], "grads": grads, "wanted": _wanted(outs)
        }  # fmt: skip

    def layer(self, case: Any, run: Any, inputs: list[Any]) -> dict[str, Any]:
        torch = self.torch
        module = run(*inputs)
        start = {n: p.detach().numpy().copy() for n, p in module.named_parameters()}
        with torch.no_grad():
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if tensor.is_floating_point() and not case["name"].endswith("Loss"):
                    tensor.copy_(torch.tensor(_weights(name, tuple(tensor.shape))).to(tensor.dtype))
        module.train()
        xs = [torch.tensor(x) for x in case["call"]]
        floats = [x for x in xs if x.is_floating_point()]
        for x in floats:
            x.requires_grad_()
        called = [x.clone() if x.is_floating_point() else x for x in xs]
        outs = _flat(module(*called))
        total = 0.0
        for place, out in enumerate(outs):
            if isinstance(out, torch.Tensor) and out.requires_grad:
                weight = torch.tensor(_cotangent(tuple(out.shape), place), dtype=out.dtype)
                total = total + (out * weight).sum()
        params = dict(module.named_parameters())
        grads = None
        if case["grads"] and isinstance(total, torch.Tensor):
            found = torch.autograd.grad(total, [*floats, *params.values()], allow_unused=True)
            grads = [
                self.array(torch.zeros_like(x) if g is None else g)
                for g, x in zip(found, [*floats, *params.values()], strict=True)
            ]
        after = {
            n: b.detach().numpy().copy()
            for n, b in module.named_buffers()
            if "num_batches" not in n and not case["name"].endswith("Loss")
        }
        values = [self.array(out) for out in outs]
        module.eval()
        with torch.no_grad():
            still = [self.array(o) for o in _flat(module(*[x.clone() for x in xs]))]
        return {
            "values": values, "grads": grads, "after": after, "eval": still, "start": start,
            "names": list(params), "wanted": _wanted(outs),
            "shapes": {
                n: tuple(x.shape)
                for n, x in [*module.named_parameters(), *module.named_buffers()]
                if x.is_floating_point()
            },
        }  # fmt: skip

    def optimizer(self, case: Any, run: Any, inputs: list[Any]) -> dict[str, Any]:
        torch = self.torch
        params = [torch.nn.Parameter(torch.tensor(w)) for w in _starts()]
        optimizer = run([params[0], params[1]] if not case["groups"] else _groups(params))
        path = []
        for step in range(STEPS):
            for place, param in enumerate(params):
                grad = _gradient_at(param.detach().numpy(), step, place)
                param.grad = None if (step, place) == (2, 1) else torch.tensor(grad)
            optimizer.step()
            path += [("float32", p.detach().numpy().copy()) for p in params]
        return {"values": path, "grads": None}

    def scheduler(self, case: Any, run: Any, inputs: list[Any]) -> dict[str, Any]:
        torch = self.torch
        params = [torch.nn.Parameter(torch.tensor(w)) for w in _starts()]
        optimizer = torch.optim.SGD(_groups(params), lr=_RATES[0], momentum=0.9)
        _resume(optimizer, case)
        return _schedule(run(optimizer), optimizer, case, optimizer.step)

    def init(self, case: Any, run: Any, inputs: list[Any]) -> dict[str, Any]:
        torch = self.torch
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.zeros(48, 64))
        run(weight)
        return {"values": [self.array(weight)], "grads": None}


def _learned(case: dict[str, Any], inputs: list[Any]) -> list[int]:
    """Return the places of tensors of floats but for the weights of classes, which torch holds."""
    names = [*case["inputs"], *[""] * len(inputs)]
    return [
        place
        for place, (name, x) in enumerate(zip(names, inputs, strict=False))
        if name not in ("cw", "pw", "wt")
        and hasattr(x, "is_floating_point")
        and x.is_floating_point()
    ]


def _wanted(outs: list[Any]) -> list[bool]:
    return [bool(getattr(out, "requires_grad", False)) for out in outs]


def _starts() -> list[np.ndarray]:
    draw = np.random.RandomState(5)
    return [draw.randn(3, 4).astype(np.float32), draw.randn(5).astype(np.float32)]


def _groups(params: list[Any]) -> list[dict[str, Any]]:
    return [{"params": [params[0]]}, {"params": [params[1]], "lr": _RATES[1]}]


def _resume(optimizer: Any, case: dict[str, Any]) -> None:
    """Give the groups what a scheduler that goes on at a later epoch reads."""
    if "last_epoch" in case["code"]:
        for group in optimizer.param_groups:
            group["initial_lr"] = 2 * float(group["lr"])


def _schedule(scheduler: Any, optimizer: Any, case: Any, step: Any) -> dict[str, Any]:
    rates = []
    plateau = case["name"].endswith("Plateau")
    for epoch in range(3 * EPOCHS if plateau else EPOCHS):
        row = [float(group["lr"]) for group in optimizer.param_groups]
        row += [float(group["momentum"]) for group in optimizer.param_groups]
        rates.append(row)
        step()
        if plateau:
            scheduler.step(_metric(epoch))
        else:
            scheduler.step()
    last = [] if plateau else list(map(float, scheduler.get_last_lr()))
    return {
        "values": [("float32", np.array(rates)), ("float32", np.array(last))], "grads": None
    }  # fmt: skip


def _metric(epoch: int) -> float:
    """What a plateau is seen in: a slow fall, rest, a little noise, for longer than patience."""
    fall = 0.99**epoch if epoch < 24 else 0.79
    return float(np.float32(fall + (0.001 * (epoch % 3) if epoch > 50 else 0.0)))


class MindSpore:
    """Runs ported cases in MindSpore."""

    name = "mindspore"

    def __init__(self) -> None:
        import mindspore as ms

        import mpcore_port_runtime as port

        ms.runtime.launch_blocking()
        self.ms, self.port = ms, port

    def seed(self) -> None:
        self.ms.set_seed(0)

    def tensor(self, value: np.ndarray) -> Any:
        return self.ms.Tensor(value)

    def array(self, value: Any) -> tuple[str, np.ndarray]:
        ms = self.ms
        if isinstance(value, ms.Tensor):
            kind = str(value.dtype).lower()
            plain = value.astype(ms.float32) if kind == "bfloat16" else value
            return kind, plain.asnumpy()
        if isinstance(value, type(ms.float32)):
            return "dtype", np.array(str(value).lower().rstrip("_"))
        return type(value).__name__, np.asarray(value)

    def _differentiate(
        self, case: Any, run: Any, xs: list[Any], params: Any = ()
    ) -> tuple[list[Any], list[Any] | None]:
        ms = self.ms
        kept: list[Any] = []
        wanted = case["wanted"]  # which outputs torch differentiates

        def total(*inputs: Any) -> Any:
            outs = _flat(run(*inputs))
            found = ms.Tensor(0.0, ms.float32)
            for place, out in enumerate(outs):
                if wanted is not None and wanted[place]:
                    out = self.port.as_real(out) if out.is_complex() else out
                    if out.dtype == ms.bfloat16:  # which the CPU build does not add up
                        out = out.astype(ms.float32)
                    weight = ms.Tensor(_cotangent(tuple(out.shape), place)).astype(out.dtype)
                    found = found + (out * weight).sum().astype(ms.float32)
            return found, tuple(out for out in outs if isinstance(out, ms.Tensor))

        if wanted is None:
            return _flat(run(*xs)), None
        floats = tuple(_learned(case if case["driver"] == "function" else {"inputs": ()}, xs))
        grad = ms.value_and_grad(
            total, floats or None, list(params) if params else None, has_aux=True
        )
        (_, outs), grads = grad(*xs)
        del kept
        if params:
            first = _flat(grads[0]) if floats else []
            second = _flat(grads[1] if floats else grads)
            grads = [*first, *second]
        return list(outs), _flat(grads)

    def function(self, case: Any, run: Any, inputs: list[Any]) -> dict[str, Any]:
        outs, grads = self._differentiate(case, run, inputs)
        return {
            "values": [self.array(out) for out in outs],
            "grads": None if grads is None else [self.array(g) for g in grads],
        }

    def layer(self, case: Any, run: Any, inputs: list[Any]) -> dict[str, Any]:
        ms, port = self.ms, self.port
        cell = run(*inputs)
        named = list(port.named_parameters(cell))
        start = {n: p.asnumpy().copy() for n, p in named}
        shapes = case["shapes"]
        state = {n: _weights(n, tuple(shape)) for n, shape in shapes.items()}
        if case["name"].endswith("Loss"):  # torch holds their weights as buffers
            state = {}
        port.load_state_dict(cell, state)
        cell.set_train()
        xs = [ms.Tensor(x) for x in case["call"]]
        params = dict(named)
        order = [params[name] for name in case["names"]]
        outs, grads = self._differentiate(case, cell, xs, order)
        after = {n: v.asnumpy() for n, v in port.state_dict(cell).items() if n not in params}
        cell.set_train(False)
        still = [self.array(o) for o in _flat(cell(*xs))]
        return {
            "values": [self.array(out) for out in outs],
            "grads": None if grads is None else [self.array(g) for g in grads],
            "after": after, "eval": still, "start": start, "names": [n for n, _ in named],
        }  # fmt: skip

    def optimizer(self, case: Any, run: Any, inputs: list[Any]) -> dict[str, Any]:
        ms, port = self.ms, self.port
        params = [ms.Parameter(ms.Tensor(w), name=f"w{place}") for place, w in enumerate(_starts())]
        optimizer = run([params[0], params[1]] if not case["groups"] else _groups(params))
        path = []
        for step in range(STEPS):
            for place, param in enumerate(params):
                grad = _gradient_at(param.asnumpy(), step, place)
                param.grad = None if (step, place) == (2, 1) else ms.Tensor(grad)
            port.step(optimizer)
            path += [("float32", p.asnumpy().copy()) for p in params]
        return {"values": path, "grads": None}

    def scheduler(self, case: Any, run: Any, inputs: list[Any]) -> dict[str, Any]:
        from mindspore.experimental import optim

        ms = self.ms
        params = [ms.Parameter(ms.Tensor(w), name=f"w{place}") for place, w in enumerate(_starts())]
        optimizer = optim.SGD(_groups(params), lr=_RATES[0], momentum=0.9)
        _resume(optimizer, case)
        return _schedule(run(optimizer), optimizer, case, lambda: None)

    def init(self, case: Any, run: Any, inputs: list[Any]) -> dict[str, Any]:
        ms = self.ms
        ms.set_seed(0)
        weight = ms.Parameter(ms.Tensor(np.zeros((48, 64), np.float32)), name="w")
        run(weight)
        return {"values": [self.array(weight)], "grads": None}


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its functions are looked up
    spec.loader.exec_module(module)
    return module


def _inputs(framework: Any, case: dict[str, Any]) -> list[Any]:
    made = []
    for name in case["inputs"]:
        if name in ("params", "optimizer", "tensor"):
            continue
        value = array(name, case["seed"], case["dtype"], case["edges"])
        made.append(value if name.startswith("np_") else framework.tensor(value))
    return made


def run_job(framework: Any, job: dict[str, Any]) -> None:
    """Run the cases of one script; leave a pickle of what each gave or raised."""
    module = _load(job["script"])
    found = {}
    for case in job["cases"]:
        case["call"] = [
            array(name, case["seed"], case["dtype"], case["edges"]) for name in case["called_with"]
        ]
        framework.seed()  # so that a case does not hang on those before it
        try:
            with np.errstate(all="ignore"):
                run = getattr(module, f"case_{case['number']}")
                found[case["number"]] = getattr(framework, case["driver"])(
                    case, run, _inputs(framework, case)
                )
        except Exception as error:  # whatever it raises is the finding
            words = f"{type(error).__name__}: {error}".strip().splitlines()
            found[case["number"]] = {
                "error": words[0][:300],
                "trace": traceback.format_exc()[-1500:],
            }
            if framework.name == "mindspore":
                from mindspore.graph.api import _pynative_executor

                with contextlib.suppress(Exception):  # it has no graph open
                    _pynative_executor.clear_res()
    with Path(job["results"]).open("wb") as file:
        pickle.dump(found, file)


def main() -> None:
    """Run jobs until the input ends."""
    framework = Torch() if sys.argv[1] == "torch" else MindSpore()
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        run_job(framework, job)
        print("done", flush=True)


if __name__ == "__main__":
    main()
