"""Run a diffusion script or its port: ``mindone_diffusion.py FOLDER torch|mindspore|read``."""

from __future__ import annotations

import runpy
import sys

import numpy as np

folder, side = sys.argv[1:]
sys.path.insert(0, folder)

_ROWS = np.random.RandomState(3)
PICTURES = _ROWS.randn(16, 3, 16, 16).astype(np.float32)
IDS = _ROWS.randint(5, 59, (16, 6)).astype(np.int64)
NOISES = _ROWS.randn(16, 4, 8, 8).astype(np.float32)
TIMES = _ROWS.randint(0, 1000, 16).astype(np.int64)


def _saved():
    import diffusers
    import torch
    import transformers
    from mindone_models import CLIP_TEXT
    from mindone_pictures import AUTOENCODER, CONDITIONED

    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(**CONDITIONED | {"cross_attention_dim": 16})
    unet.save_pretrained("weights/unet")
    diffusers.AutoencoderKL(**AUTOENCODER).save_pretrained("weights/vae")
    settings = {"prediction_type": "v_prediction", "beta_schedule": "scaled_linear"}
    diffusers.DDPMScheduler(**settings).save_pretrained("weights/scheduler")
    config = transformers.CLIPTextConfig(**CLIP_TEXT)
    transformers.CLIPTextModel(config).save_pretrained("weights/text_encoder")
    return np.array([param.detach().norm().item() for param in unet.parameters()])


def _read():
    from diffusers import UNet2DConditionModel
    from diffusers.training_utils import EMAModel

    ema = EMAModel.from_pretrained("averages", UNet2DConditionModel)
    norms = [param.detach().norm().item() for param in ema.shadow_params]
    np.savez("read.npz", averages=norms, step=ema.optimization_step)


def main():
    if side == "read":
        _read()
        return
    start = _saved() if side == "torch" else np.zeros(1)
    if side == "mindspore":
        import mindone_kernels

        mindone_kernels.install()
    train = runpy.run_path("original.py" if side == "torch" else "port.py")["train"]
    batch = (PICTURES, IDS, NOISES, TIMES)
    losses, decoded, norms, averages = train("weights", *batch)
    kept = {"decoded": decoded, "norms": norms, "averages": averages, "start": start}
    np.savez(f"{side}.npz", losses=losses, **kept)


if __name__ == "__main__":
    main()
