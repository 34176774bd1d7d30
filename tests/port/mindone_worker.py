"""Compare networks of ports with transformers' on torch: ``mindone_worker.py FOLDER [CLASS ...]``.

A failed backward pass leaves MindSpore with half a tape: the first error ends it.
FOLDER has mindone 0.5.0 and transformers 4.57.1 and is made as docs/decisions/031 says.
"""

from __future__ import annotations

import json
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])

import mindone_kernels
import mindspore as ms
import torch
import transformers
from mindone_models import models

import mpcore_port_runtime as port
from mpcore_port_runtime import transformers as ported

mindone_kernels.install()
torch.set_num_threads(1)


def _pair(name, config, settings):
    torch.manual_seed(0)
    made, again = (getattr(transformers, config)(**settings) for _ in range(2))
    theirs, ours = getattr(transformers, name), getattr(ported, name)
    if name.startswith("Auto"):
        theirs, ours = theirs.from_config, ours.from_config
    there, here = theirs(made), ours(again)
    return alike(there, here)


def alike(there, here):
    """Give two networks equal weights, none of which is one of those that networks begin from."""
    for param in there.parameters():
        param.data += 0.05 * torch.randn_like(param) if param.dim() else 0
    values = {one: param.detach().numpy() for one, param in there.named_parameters()}
    for one, param in port.named_parameters(here):
        param.set_data(ms.Tensor(values[one].reshape(param.shape)))
    return there, here


def _reduced(out, read):
    loss = out.get("loss")
    if loss is not None:
        return loss
    parts = [out[key] for key in read]
    return sum((part**2).mean() for part in parts)


def _far(here, there, least=0.0):
    apart = np.abs(here.astype(np.float64) - there.reshape(here.shape))
    return float(apart.max() / (np.abs(there).max() + least + 1e-9))


def _tensors(batch, made):
    """Return a batch with tensors for its arrays."""
    if isinstance(batch, dict):
        return {key: _tensors(value, made) for key, value in batch.items()}
    return made(batch) if isinstance(batch, np.ndarray) else batch


def compare(name, config, settings, batch):
    """Return how far two networks are apart, and what is not equal at all."""
    return beside(*_pair(name, config, settings), batch)


def beside(there, here, batch):
    """Return how far outputs and gradients of two networks are apart."""
    names = [one for one, _ in there.named_parameters()]
    assert [one for one, _ in port.named_parameters(here)] == names
    assert here.training
    assert there.training
    wanted = there(**_tensors(batch, torch.tensor))
    read = [key for key, value in wanted.items() if isinstance(value, torch.Tensor)]
    _reduced(wanted, read).backward()
    given = _tensors(batch, ms.Tensor)
    kept = {}

    def forward():
        kept["out"] = here(**given)
        return _reduced(kept["out"], read)

    params = ms.ParameterTuple(port.parameters(here))
    _, gradients = ms.value_and_grad(forward, None, params)()
    out = kept["out"]
    assert list(out.keys()) == list(wanted.keys()), (list(out.keys()), list(wanted.keys()))
    assert all(out[key].dtype == ms.float32 for key in read)
    apart = max(_far(out[key].asnumpy(), wanted[key].detach().numpy()) for key in read)
    known = {one: param.grad for one, param in there.named_parameters()}
    largest = max(float(one.abs().max()) for one in known.values() if one is not None)
    moved = 0.0
    for one, gradient in zip(names, gradients, strict=True):
        grad = known[one]
        zero = np.zeros(gradient.shape, np.float32)
        value = zero if grad is None else grad.numpy()
        moved = max(moved, _far(gradient.asnumpy(), value, 1e-2 * largest))
    return max(apart, moved)


def main():
    asked = sys.argv[2:]
    for name, *rest in sorted(
        models(), key=lambda one: asked.index(one[0]) if one[0] in asked else 0
    ):
        if asked and name not in asked:
            continue
        print("RESULT", json.dumps({"class": name, "apart": compare(name, *rest)}), flush=True)


if __name__ == "__main__":
    main()
