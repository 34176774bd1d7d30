"""Compare what ports take of diffusers with torch's: ``mindone_diffusers.py FOLDER [CLASS ...]``.

FOLDER has mindone 0.5.0, transformers 4.57.1 and diffusers 0.35.2 (docs/decisions/031).
"""

from __future__ import annotations

import json
import sys

import mindone_worker  # puts FOLDER on the path

# isort: split
import diffusers
import mindspore as ms
import numpy as np
import torch
from mindone_pictures import AUTOENCODER, NETWORKS, NOISY, PICTURES, SCHEDULERS, TIMES

from mpcore_port_runtime import diffusers as ported


def _network(name, settings, batch):
    torch.manual_seed(0)
    pair = getattr(diffusers, name)(**settings), getattr(ported, name)(**settings)
    there, here = mindone_worker.alike(*pair)
    assert dict(there.config) == dict(here.config)
    return mindone_worker.beside(there, here, batch)


def _apart(here, there):
    """Return how far two arrays are apart, by the largest."""
    return float(np.abs(here - there).max() / (np.abs(there).max() + 1e-9))


def encoded():
    """Return how far latents, pictures, divergences and their gradients are apart."""
    there, here = mindone_worker.alike(
        diffusers.AutoencoderKL(**AUTOENCODER), ported.AutoencoderKL(**AUTOENCODER)
    )
    wanted = there.encode(torch.tensor(PICTURES)).latent_dist
    found = here.encode(ms.Tensor(PICTURES)).latent_dist
    again = here.encode(ms.Tensor(PICTURES))[0]
    pairs = [(again.mode(), wanted.mode()), (found.kl(), wanted.kl())]
    pairs += [
        (getattr(found, one), getattr(wanted, one)) for one in ("mean", "logvar", "std", "var")
    ]
    pairs.append((found.nll(found.mean * 2), wanted.nll(wanted.mean * 2)))
    other, theirs = ported.DiagonalGaussianDistribution, type(wanted)
    pairs.append(
        (found.kl(other(found.parameters * 0.5)), wanted.kl(theirs(wanted.parameters * 0.5)))
    )
    pairs.append((here.decode(found.mode()).sample, there.decode(wanted.mode()).sample))
    pairs.append((here.decode(found.mode(), return_dict=False)[0], there.decode(wanted.mode())[0]))
    apart = [_apart(one.asnumpy(), two.detach().numpy()) for one, two in pairs]
    drawn = (found.sample() - found.mean) / found.std
    assert abs(float(drawn.mean())) < 0.3
    assert 0.7 < float(drawn.std()) < 1.3
    return max(apart)


def _stepped(scheduler, tensor, number):
    """Return what a scheduler makes of the same numbers."""
    made = [scheduler.betas, scheduler.alphas_cumprod]
    sample, noise, times = tensor(NOISY), tensor(NOISY[:, ::-1].copy()), tensor(TIMES)
    made.append(scheduler.add_noise(sample, noise, times))
    made.append(scheduler.add_noise(sample, noise, times[:1]))
    if hasattr(scheduler, "get_velocity"):
        made.append(scheduler.get_velocity(sample, noise, times))
    scheduler.set_timesteps(13, device="cpu")
    made.append(scheduler.timesteps)
    for time in scheduler.timesteps:
        out = scheduler.step(0.3 * sample + noise, time, sample)
        sample = out.prev_sample
        assert out[0] is sample
        made.append(sample)
    made.append(scheduler.step(noise, scheduler.timesteps[-1], sample, return_dict=False)[0])
    return [number(one) for one in made]


def _scheduled(name, settings):
    there, here = getattr(diffusers, name)(**settings), getattr(ported, name)(**settings)
    for side, tensor in ((there, torch.tensor), (here, ms.Tensor)):
        module = sys.modules[type(side).__module__]
        if hasattr(module, "randn_tensor"):
            module.randn_tensor = lambda shape, tensor=tensor, **_: tensor(
                np.random.RandomState(5).randn(*shape).astype(np.float32)
            )
    wanted = _stepped(there, torch.tensor, lambda one: one.numpy())
    found = _stepped(here, ms.Tensor, lambda one: one.asnumpy())
    assert dict(there.config) == dict(here.config)
    exact = settings.get("beta_schedule") != "sigmoid" and not settings.get(
        "rescale_betas_zero_snr"
    )
    assert not exact or all(map(np.array_equal, found[:2], wanted[:2])), (found[:2], wanted[:2])
    pairs = zip(found, wanted, strict=True)
    return {"most": 1e-5, "apart": max(_apart(one, two) for one, two in pairs)}


def main():
    asked = sys.argv[2:]
    for name, *rest in NETWORKS:
        if not asked or name in asked:
            found = {"class": name, "apart": _network(name, *rest)}
            print("RESULT", json.dumps(found), flush=True)
    if not asked or "AutoencoderKL" in asked:
        print("RESULT", json.dumps({"class": "AutoencoderKL", "apart": encoded()}), flush=True)
    for name, settings in SCHEDULERS:
        if not asked or name in asked:
            found = {"class": name, **_scheduled(name, settings)}
            print("RESULT", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
