"""The conformance kit of the torch backend."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import mpcore as mp


def _same(value):
    return value


class _Kit:
    name = "torch"
    modes = ("eager", "compiled")
    _compiled_rule = None

    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(
            OrderedDict(
                fc1=nn.Linear(8, 16), bn=nn.BatchNorm1d(16), act=nn.ReLU(), fc2=nn.Linear(16, 4)
            )
        )

    def sgd(self, model, learning_rate, momentum):
        return torch.optim.SGD(model.parameters(), learning_rate, momentum=momentum)

    def adam(self, model, learning_rate):
        return torch.optim.Adam(model.parameters(), learning_rate)

    def loss_fn(self, model):
        return lambda x, y, boost: functional.cross_entropy(model(x), y) * boost

    def batch(self, x, y, boost):
        return torch.from_numpy(x), torch.from_numpy(y).long(), torch.tensor(np.float32(boost))

    def stepper(self, amp, loss_fn, mode, clip_norm=None):
        if mode == "eager":
            return lambda *batch: amp.step(loss_fn, *batch, clip_norm=clip_norm, keep_grads=True)

        def loop(*batch):
            with amp.autocast():
                loss = loss_fn(*batch)
            amp.backward(loss)
            return amp.apply(clip_norm=clip_norm, keep_grads=True)

        return loop

    def snapshot(self, model, optimizer, amp):
        taken = dict(model.state_dict())
        for number, (param, slots) in enumerate(optimizer.state.items()):
            taken[f"{number}:param"] = param
            taken |= {f"{number}:{name}": torch.as_tensor(v) for name, v in slots.items()}
        return {name: value.detach().float().numpy().copy() for name, value in taken.items()}

    def layer_dtypes(self, model, amp, x):
        seen, handles = {}, []
        for path, module in model.named_children():

            def hook(_module, _args, output, path=path):
                seen[path] = str(output.dtype).removeprefix("torch.")

            handles.append(module.register_forward_hook(hook))
        with amp.autocast(), torch.no_grad():
            model(torch.from_numpy(x))
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
            torch.tensor(state[0], dtype=torch.float32),
            *(torch.tensor(count, dtype=torch.int32) for count in state[1:]),
        )
        moved = run(rule, tensors, torch.tensor(finite), torch.where, _same)
        assert moved[0].dtype == torch.float32
        return tuple(value.item() for value in moved)


kit = _Kit()
