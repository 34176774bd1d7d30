"""The conformance kit of the torch backend."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import mpcore as mp
from mpcore.conformance.harness import DriverKit
from mpcore_torch import emulated_ascend


def _same(value):
    return value


def _loop(amp, loss_fn, batch, micro_batches=1, optimizer=None, **call):
    """What a training loop of one's own does: the second way to step."""
    losses = loss_fn if isinstance(loss_fn, dict) else {optimizer: loss_fn}
    # Losses divided by their number give no exact thirds: the mean is what dropping compares.
    mean = amp._tx.drops
    for index in range(micro_batches):
        x, y, boost = batch
        rows = slice(index * len(x) // micro_batches, (index + 1) * len(x) // micro_batches)
        for name, function in losses.items():
            with amp.autocast():
                loss = function(x[rows], y[rows], boost)
            amp.backward(loss if mean else loss / micro_batches, optimizer=name)
    return amp.apply(keep_grads=True, optimizer=optimizer, mean=mean, **call)


class TorchKit(DriverKit):
    """On ``device``; tests/device runs it on an accelerator."""

    name = "torch"
    device = "cpu"
    modes = ("eager", "compiled")
    differentiates = changes_model = optimizer_holds_parameters = True
    saturating_steps = 1000
    _compiled_rule = None

    def model(self):
        torch.manual_seed(0)
        model = nn.Sequential(
            OrderedDict(
                fc1=nn.Linear(8, 16), bn=nn.BatchNorm1d(16), act=nn.ReLU(), fc2=nn.Linear(16, 4)
            )
        )
        return model.to(self.device)

    def sgd(self, model, learning_rate, momentum):
        return torch.optim.SGD(model.parameters(), learning_rate, momentum=momentum)

    def adam(self, model, learning_rate):
        return torch.optim.Adam(model.parameters(), learning_rate)

    def sgd_over(self, model, layers, learning_rate):
        parts = [getattr(model, layer) for layer in layers]
        params = [param for part in parts for param in part.parameters()]
        return torch.optim.SGD(params, learning_rate, momentum=0.9)

    def loss_fn(self, model):
        return lambda x, y, boost: functional.cross_entropy(model(x), y) * boost

    def losses(self, model):
        def steady(x, y, boost):
            return functional.cross_entropy(model(x), y)

        return {"a": steady, "b": self.loss_fn(model)}

    def counter(self):
        count = torch.zeros((), device=self.device)
        return lambda: count.add_(1), lambda: int(count)

    def memory(self, model):
        memory, base = torch.zeros(16, device=self.device), self.loss_fn(model)

        def loss_fn(*batch):
            memory.add_(1)
            return base(*batch)

        return memory, loss_fn, lambda: memory.cpu().numpy().copy()

    def emulated_ascend(self):
        return emulated_ascend()

    def batch(self, x, y, boost):
        arrays = torch.from_numpy(x), torch.from_numpy(y).long(), torch.tensor(np.float32(boost))
        return tuple(array.to(self.device) for array in arrays)

    def stepper(self, amp, loss_fn, mode, **call):
        if mode == "eager":
            return lambda *batch: amp.step(loss_fn, *batch, keep_grads=True, **call)
        return lambda *batch: _loop(amp, loss_fn, batch, **call)

    def snapshot(self, model, optimizer, amp):
        taken = dict(model.state_dict())
        for key, entry in amp.optimizers.items():
            names = {param: name for name, param in model.named_parameters()}
            names |= {amp.masters[low]: name for low, name in names.items() if low in amp.masters}
            for param, slots in entry.state.items():
                taken[f"{key}:{names[param]}"] = param
                taken |= {f"{key}:{names[param]}:{n}": torch.as_tensor(v) for n, v in slots.items()}
        return {name: value.detach().float().cpu().numpy().copy() for name, value in taken.items()}

    def layer_dtypes(self, model, amp, x):
        seen, handles = {}, []
        for path, module in model.named_children():

            def hook(_module, _args, output, path=path):
                seen[path] = str(output.dtype).removeprefix("torch.")

            handles.append(module.register_forward_hook(hook))
        with amp.autocast(), torch.no_grad():
            model(torch.from_numpy(x).to(self.device))
        for handle in handles:
            handle.remove()
        return seen

    def transition(self, rule, state, finite, mode):
        run = mp.transition
        if mode == "compiled":
            if rule != self._compiled_rule:
                torch.compiler.reset()  # it keeps at most eight versions of one function
                self._compiled_rule = rule
            run = torch.compile(mp.transition, fullgraph=True, backend="aot_eager")
        tensors = (
            torch.tensor(state[0], dtype=torch.float32, device=self.device),
            *(torch.tensor(n, dtype=torch.int32, device=self.device) for n in state[1:]),
        )
        verdict = torch.tensor(finite, device=self.device)
        moved = run(rule, tensors, verdict, torch.where, _same)
        assert moved[0].dtype == torch.float32
        return tuple(value.item() for value in moved)


kit = TorchKit()
