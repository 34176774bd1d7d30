"""Networks of mindone beside those of transformers on torch; opt-in, as mindone pins transformers.

``MPCORE_MINDONE`` names a folder with mindone 0.5.0, transformers 4.57.1 and diffusers 0.35.2
(decision 031). A network takes seconds, all of them some minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mpcore_port_runtime import diffusers, transformers

from .ports import ported

FOLDER = os.environ.get("MPCORE_MINDONE", "")
HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="MPCORE_MINDONE names no folder with mindone 0.5.0 and transformers 4.57.1"
)


def _run(*arguments, cwd=HERE):
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_every_class_that_ports_take_is_transformers_own():
    """Outputs by name, losses and gradients with equal weights, within 1e-4 of the largest."""
    lines = _run("mindone_worker.py", FOLDER, *sorted(transformers.COMPARED)).splitlines()
    results = [json.loads(line[7:]) for line in lines if line.startswith("RESULT ")]
    assert {one["class"] for one in results} == transformers.COMPARED
    assert not [one for one in results if one.get("apart", 1.0) > 1e-4], results


def test_diffusers_networks_and_schedulers_that_ports_take_are_its_own():
    """Outputs, gradients, latents, noise and steps; tables of a schedule bit by bit."""
    lines = _run("mindone_diffusers.py", FOLDER).splitlines()
    results = [json.loads(line[7:]) for line in lines if line.startswith("RESULT ")]
    assert {one["class"] for one in results} == diffusers.NETWORKS | diffusers.SCHEDULERS
    assert not [one for one in results if one["apart"] > one.get("most", 1e-4)], results


DIFFUSION = """import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel, compute_snr
from torch.cuda.amp import GradScaler, autocast
from transformers import CLIPTextModel

def train(folder, pictures, ids, noises, times, amp=False):
    noise_scheduler = DDPMScheduler.from_pretrained(folder, subfolder="scheduler")
    text_encoder = CLIPTextModel.from_pretrained(folder, subfolder="text_encoder")
    vae = AutoencoderKL.from_pretrained(folder, subfolder="vae")
    unet = UNet2DConditionModel.from_pretrained(folder, subfolder="unet")
    vae.requires_grad_(False)
    text_encoder.requires_grad_(False)
    unet.train()
    ema_unet = EMAModel(
        unet.parameters(), decay=0.9, model_cls=UNet2DConditionModel, model_config=unet.config
    )
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3, weight_decay=1e-2)
    lr_scheduler = get_scheduler(
        "linear", optimizer=optimizer, num_warmup_steps=2, num_training_steps=5
    )
    scaler = GradScaler(enabled=amp, init_scale=64.0)
    given, losses = (pictures, ids, noises, times), []
    for step in range(5):
        batch = [torch.tensor(one[2 * step : 2 * step + 2]) for one in given]
        with torch.no_grad():
            latents = vae.encode(batch[0]).latent_dist.mode()
            latents = latents * vae.config.scaling_factor
            encoder_hidden_states = text_encoder(batch[1])[0]
        noise, timesteps = batch[2], batch[3].long()
        noisy_latents = noise_scheduler.add_noise(latents, noise, timesteps)
        if noise_scheduler.config.prediction_type == "epsilon":
            target = noise
        elif noise_scheduler.config.prediction_type == "v_prediction":
            target = noise_scheduler.get_velocity(latents, noise, timesteps)
        with autocast(enabled=amp):
            model_pred = unet(noisy_latents, timesteps, encoder_hidden_states).sample
            snr = compute_snr(noise_scheduler, timesteps)
            loss = F.mse_loss(model_pred.float(), target.float(), reduction="none")
            loss = (loss.mean(dim=[1, 2, 3]) * torch.clamp(snr, max=5.0) / (snr + 1)).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        lr_scheduler.step()
        ema_unet.step(unet.parameters())
        losses.append(loss.item())
    norms = [p.detach().float().norm().item() for p in unet.parameters()]
    averages = [p.float().norm().item() for p in ema_unet.shadow_params]
    ema_unet.save_pretrained("averages")
    ema_unet.copy_to(unet.parameters())
    unet.eval()
    sample = torch.tensor(noises[:2])
    noise_scheduler.set_timesteps(3, device="cpu")
    with torch.no_grad():
        pred = unet(sample, noise_scheduler.timesteps[0], encoder_hidden_states).sample
        decoded = vae.decode(pred / vae.config.scaling_factor).sample
    return np.array(losses), decoded.detach().numpy(), np.array(norms), np.array(averages)
"""


def test_a_diffusion_script_ends_where_it_ends_beside_torch(tmp_path):
    """Latents, noise, AdamW, a schedule, clipping, averages, from weights that torch saved."""
    found = ported(DIFFUSION)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    (tmp_path / "original.py").write_text(DIFFUSION, encoding="utf-8")
    (tmp_path / "port.py").write_text(found.text, encoding="utf-8")
    worker = HERE / "mindone_diffusion.py"
    _run(worker, FOLDER, "torch", cwd=tmp_path)
    _run(worker, FOLDER, "mindspore", cwd=tmp_path)
    _run(worker, FOLDER, "read", cwd=tmp_path)
    there, here = np.load(tmp_path / "torch.npz"), np.load(tmp_path / "mindspore.npz")
    for key in ("losses", "decoded", "norms", "averages"):
        np.testing.assert_allclose(here[key], there[key], rtol=1e-4, atol=1e-4)
    assert np.abs(here["norms"] - there["start"]).max() > 1e-3
    read = np.load(tmp_path / "read.npz")  # what the port has saved, by diffusers on torch
    np.testing.assert_allclose(read["averages"], here["averages"], rtol=1e-5)
    assert read["step"] == 5


HEAD = """import numpy as np
import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from transformers import {names}, get_linear_schedule_with_warmup

def groups(model, decay):
    no_decay = ["bias", "LayerNorm.weight", "layernorm.weight", "ln_"]
    return [
        {{"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
         "weight_decay": decay}},
        {{"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)],
         "weight_decay": 0.0}},
    ]
"""
LOOP = """
def train(folder, ids, mask, labels, amp=False):
    model = {made}
    optimizer = torch.optim.AdamW(groups(model, 0.1), lr=1e-3, eps=1e-8)
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=4)
    scaler = GradScaler(enabled=amp)
    model.train()
    model.zero_grad()
    losses = []
    for step in range(6):
        batch = tuple(torch.tensor(t[2 * step : 2 * step + 2]) for t in (ids, mask, labels))
        inputs = {{"input_ids": batch[0], "attention_mask": batch[1], "labels": batch[2]}}
        with autocast(enabled=amp):
            outputs = model(**inputs)
            loss = {loss}
            loss = loss / 2
        scaler.scale(loss).backward()
        losses.append(loss.item())
        if (step + 1) % 2 == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            model.zero_grad()
    model.eval()
    with torch.no_grad():
        outputs = model(**inputs)
        {last}
    norms = [p.detach().float().norm().item() for n, p in model.named_parameters()]
    return np.array(losses), logits.detach().cpu().numpy(), np.array(norms)
"""
OWN = """
class Classifier(nn.Module):
    def __init__(self, folder):
        super().__init__()
        self.encoder = AutoModel.from_pretrained(folder)
        self.head = nn.Linear(self.encoder.config.hidden_size, 3)
        self.head.weight.data.copy_(torch.linspace(-0.5, 0.5, 48).view(3, 16))
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids, attention_mask, labels):
        out = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        logits = self.head(out.last_hidden_state[:, 0] + out.pooler_output)
        return nn.functional.cross_entropy(logits, labels), logits
"""
PAIR = "tmp_eval_loss, logits = outputs[:2]"
SCRIPTS = {
    "classes": (
        HEAD.format(names="BertForSequenceClassification")
        + LOOP.format(
            made="BertForSequenceClassification.from_pretrained(folder, num_labels=3)",
            loss="outputs[0]",
            last=PAIR,
        ),
        "BertForSequenceClassification",
    ),
    "words": (
        HEAD.format(names="GPT2LMHeadModel")
        + LOOP.format(
            made="GPT2LMHeadModel.from_pretrained(folder)",
            loss="outputs.loss",
            last="logits = outputs.logits",
        ),
        "GPT2LMHeadModel",
    ),
    "own": (
        HEAD.format(names="AutoModel")
        + OWN
        + LOOP.format(made="Classifier(folder)", loss="outputs[0]", last=PAIR),
        "BertModel",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_training_script_ends_where_it_ends_beside_torch(name, tmp_path):
    """AdamW with groups by name, a schedule, accumulation, clipping, weights that torch saved."""
    script, kind = SCRIPTS[name]
    found = ported(script)
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    (tmp_path / "original.py").write_text(script, encoding="utf-8")
    (tmp_path / "port.py").write_text(found.text, encoding="utf-8")
    worker = HERE / "mindone_training.py"
    _run(worker, FOLDER, "torch", kind, cwd=tmp_path)
    _run(worker, FOLDER, "mindspore", kind, cwd=tmp_path)
    there, here = np.load(tmp_path / "torch.npz"), np.load(tmp_path / "mindspore.npz")
    for key in ("losses", "logits", "norms"):
        np.testing.assert_allclose(here[key], there[key], rtol=1e-4, atol=1e-4)
    assert np.abs(here["norms"] - there["start"]).max() > 1e-3
    assert np.isfinite(here["half"]).all()
    np.testing.assert_allclose(here["half"], there["losses"], rtol=2e-2)
