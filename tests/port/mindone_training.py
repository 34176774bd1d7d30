"""Run a training script or its port: ``mindone_training.py FOLDER torch|mindspore CLASS``."""

from __future__ import annotations

import runpy
import sys

import numpy as np

folder, side, name = sys.argv[1:]
sys.path.insert(0, folder)

import transformers  # noqa: E402
from mindone_models import BERT, GPT2, models  # noqa: E402

_ROWS = np.random.RandomState(3)
IDS = _ROWS.randint(5, 60, (12, 7)).astype(np.int64)
MASK = (np.arange(7) < _ROWS.randint(3, 8, (12, 1))).astype(np.int64)


def _labels():
    if "GPT2" in name:
        return np.where(MASK == 1, IDS, -100)
    return _ROWS.randint(0, 3, 12).astype(np.int64)


def _saved():
    import torch

    torch.manual_seed(0)
    config = next(config for one, config, *_ in models() if one == name)
    settings = {**(GPT2 if "GPT2" in name else BERT), "num_labels": 3}
    net = getattr(transformers, name)(getattr(transformers, config)(**settings))
    net.save_pretrained("weights")
    return np.array([param.detach().norm().item() for param in net.parameters()])


def main():
    start = _saved() if side == "torch" else np.zeros(1)
    if side == "mindspore":
        import mindone_kernels

        mindone_kernels.install()
    train = runpy.run_path("original.py" if side == "torch" else "port.py")["train"]
    batch = (IDS, MASK, _labels())
    losses, logits, norms = train("weights", *batch)
    half = train("weights", *batch, amp=True)[0] if side == "mindspore" else losses
    if len(start) != len(norms):
        start = np.append(start, norms[len(start) :] + 1)
    np.savez(f"{side}.npz", losses=losses, logits=logits, norms=norms, half=half, start=start)


if __name__ == "__main__":
    main()
