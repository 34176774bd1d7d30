"""Networks and schedulers of diffusers become mindone's where these were compared, by line."""

from __future__ import annotations

import sys
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import mpcore_port_runtime as port
from mpcore_port.engine import port_tree
from mpcore_port.mindspore.tables import table
from mpcore_port.report import needs
from mpcore_port.source import walk
from mpcore_port.targets import Options
from mpcore_port_runtime import diffusers

from .ports import TARGET, ported

DIFFUSION = """import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.training_utils import EMAModel, compute_snr

def train(folder, pictures, words, times):
    noise_scheduler = DDPMScheduler.from_pretrained(folder, subfolder="scheduler")
    vae = AutoencoderKL.from_pretrained(folder, subfolder="vae")
    unet = UNet2DConditionModel.from_pretrained(folder, subfolder="unet")
    vae.requires_grad_(False)
    unet.enable_gradient_checkpointing()
    ema = EMAModel(unet.parameters(), model_cls=UNet2DConditionModel, model_config=unet.config)
    with torch.no_grad():
        latents = vae.encode(pictures).latent_dist.mode() * vae.config.scaling_factor
    noise = torch.ones_like(latents)
    noisy = noise_scheduler.add_noise(latents, noise, times)
    pred = unet(noisy, times, encoder_hidden_states=words, return_dict=False)[0]
    return F.mse_loss(pred, noise_scheduler.get_velocity(latents, noise, times)), ema
"""


def test_networks_and_schedulers_that_were_compared_are_mindones_and_never_called_exact():
    """The lines that make them are unproven and name the package."""
    found = ported(DIFFUSION)
    for name in ("AutoencoderKL", "DDPMScheduler", "UNet2DConditionModel"):
        assert f"port.diffusers.{name}.from_pretrained(folder, subfolder=" in found.text
    assert "port.diffusers.EMAModel(port.parameters(unet)" in found.text
    assert "model_cls=port.diffusers.UNet2DConditionModel" in found.text
    assert not [edit for edit in found.edits if edit.kind == "refused"]
    said = [edit for edit in found.edits if "mindone 0.5" in edit.reason]
    assert {7, 8, 9} <= {edit.line for edit in said}
    assert {edit.kind for edit in said} == {"unproven"}
    assert all("not run on Ascend" in edit.reason for edit in said)


def test_the_report_names_mindone_among_what_a_port_needs(tmp_path):
    """Averages of weights alone do not need it."""
    (tmp_path / "tuned.py").write_text(DIFFUSION, encoding="utf-8")
    assert "mindone" in needs(port_tree(walk(tmp_path), TARGET, Options()))
    averages = "import torch\nfrom diffusers.training_utils import EMAModel\n"
    averages += "ema = EMAModel(torch.nn.Linear(2, 2).parameters())\n"
    (tmp_path / "tuned.py").write_text(averages, encoding="utf-8")
    assert "mindone" not in needs(port_tree(walk(tmp_path), TARGET, Options()))


@pytest.mark.parametrize(
    "line",
    [
        "from diffusers import AutoencoderKL",
        "from diffusers.models import AutoencoderKL",
        "from diffusers.models.autoencoder_kl import AutoencoderKL",
        "from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL",
    ],
)
def test_a_class_is_known_wherever_it_is_taken_from(line):
    """The files that define networks have moved with diffusers' versions."""
    found = ported(f"import torch\n{line}\nvae = AutoencoderKL.from_pretrained('x').to('cuda')\n")
    assert "port.diffusers.AutoencoderKL.from_pretrained('x')" in found.text


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "from diffusers import FluxPipeline\npipe = FluxPipeline.from_pretrained('x')\n",
            "mindone",
        ),
        (
            "from diffusers import UNet2DModel\nclass A(UNet2DModel):\n    pass\n",
            "on top of one",
        ),
    ],
)
def test_what_was_not_compared_is_refused_and_names_the_way_out(script, why):
    """Pipelines, other networks, classes of a script's own on top of one."""
    refused = [edit for edit in ported(f"import torch\n{script}").edits if edit.kind == "refused"]
    assert any(why in edit.reason for edit in refused)


def test_the_table_has_what_the_support_takes():
    """No class is promised that raises, none is kept back that was compared."""
    rows = {name.split(".")[1] for name in table("diffusers") if "training_utils" not in name}
    assert rows == diffusers.NETWORKS | diffusers.SCHEDULERS


# --- the support, beside classes that stand for mindone's ------------------------------------


class AutoencoderKL(nn.Cell):
    """A network as mindone has them: it gives a tuple unless it is asked for more."""

    def __init__(self, channels=2):
        super().__init__()
        self.channels = channels
        self.mid_block = nn.Dense(channels, channels)
        self.up_blocks = nn.Dense(channels, channels)
        self.set_train(False)

    def encode(self, x, return_dict=False):
        made = ops.cat([x, 0 * x + 50.0], 1)
        return {"latent": made} if return_dict else (made,)

    def decode(self, z, return_dict=False):
        return {"sample": 2 * z} if return_dict else (2 * z,)

    def construct(self, sample, return_dict=False):
        raise AssertionError(sample, return_dict)

    @classmethod
    def from_pretrained(cls, channels, subfolder=None):
        made = cls(channels)
        made.folder = subfolder
        made.set_train(False)
        return made


class DDPMScheduler:
    """A scheduler as mindone has them."""

    def __init__(self, num_train_timesteps=1000, beta_schedule="linear", trained_betas=None):
        self.config = types.SimpleNamespace(
            beta_start=1e-4,
            beta_end=0.02,
            num_train_timesteps=num_train_timesteps,
            beta_schedule=beta_schedule,
            trained_betas=trained_betas,
            get={}.get,
        )
        betas = np.linspace(1e-4, 0.02, num_train_timesteps, dtype=np.float32)
        self.betas = Tensor(betas if trained_betas is None else trained_betas, ms.float32)

    def set_timesteps(self, num_inference_steps=None):
        self.timesteps = Tensor(np.arange(num_inference_steps)[::-1].copy())

    def step(self, model_output, timestep, sample, generator=None, return_dict=False):
        made = sample - model_output * timestep
        return {"prev_sample": made} if return_dict else (made,)

    def add_noise(self, original_samples, noise, timesteps):
        kept = self.alphas_cumprod[timesteps].reshape(timesteps.shape[0], 1)
        return kept * original_samples + noise


@pytest.fixture
def mindone(monkeypatch):
    """A package with these classes in place of mindone."""
    package, inside = types.ModuleType("mindone"), types.ModuleType("mindone.diffusers")
    package.diffusers = inside
    for kind in (AutoencoderKL, DDPMScheduler):
        monkeypatch.setattr(kind, "__module__", "mindone.diffusers")
        setattr(inside, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "mindone", package)
    monkeypatch.setitem(sys.modules, "mindone.diffusers", inside)


X = Tensor(np.array([[1.0, -2.0]], np.float32).reshape(1, 2, 1, 1))


@pytest.mark.usefixtures("mindone")
def test_outputs_distributions_modes_and_order_are_torchs():
    """A new network trains, gives its outputs by name, a distribution of latents."""
    net = diffusers.AutoencoderKL(2)
    assert net.training
    assert not diffusers.AutoencoderKL.from_pretrained(2, subfolder="vae").training
    assert next(name for name, _ in port.named_parameters(net)).startswith("up_blocks")
    found = net.encode(X).latent_dist
    np.testing.assert_array_equal(found.mode().asnumpy(), X.asnumpy())
    np.testing.assert_array_equal(port.mode(found).asnumpy(), X.asnumpy())
    assert float(found.logvar.max()) == 20.0
    assert found.sample().shape == X.shape
    assert net.encode(X, return_dict=False)[0].mean.shape == X.shape
    assert isinstance(net.decode(X), dict)
    assert isinstance(net.decode(X, return_dict=False), tuple)
    np.testing.assert_array_equal(net(X)["sample"].asnumpy(), 2 * X.asnumpy())
    assert net.requires_grad_(False) is net
    assert not any(param.requires_grad for param in port.parameters(net))


@pytest.mark.usefixtures("mindone")
def test_what_was_not_compared_raises_when_it_runs():
    """Dtypes of weights, the other classes, numbers of a torch.Generator in a step."""
    with pytest.raises(NotImplementedError, match="`torch_dtype` must be left out"):
        diffusers.AutoencoderKL.from_pretrained(2, torch_dtype=ms.float16)
    assert diffusers.AutoencoderKL.from_pretrained(2, torch_dtype=ms.float32)
    with pytest.raises(AttributeError, match="VQModel of mindone was not compared"):
        _ = diffusers.VQModel
    with pytest.raises(NotImplementedError, match="leave `generator` out"):
        diffusers.DDPMScheduler().step(X, 1, X, generator=port.Generator())


LINEAR = [9.999999747378752e-05, 0.00011991991777904332, 0.0001398398308083415]
"""torch.linspace(1e-4, 0.02, 1000)[:3], and the products of 1 - it at 0, 1, 999."""
PRODUCTS = [0.9998999834060669, 0.9997800588607788, 4.035830352222547e-05]


@pytest.mark.usefixtures("mindone")
def test_a_scheduler_has_torchs_numbers_and_takes_one_timestep_and_a_device():
    """``set_timesteps`` with a device, ``step`` by name, noise of one time for all."""
    scheduler = diffusers.DDPMScheduler()
    kept = scheduler.alphas_cumprod.asnumpy()
    np.testing.assert_array_equal(scheduler.betas.asnumpy()[:3], np.float32(LINEAR))
    np.testing.assert_array_equal(kept[[0, 1, 999]], np.float32(PRODUCTS))
    scheduler.set_timesteps(3, device="cpu")
    assert scheduler.timesteps.shape == (3,)
    assert set(scheduler.step(X, 2, X)) == {"prev_sample"}
    assert isinstance(scheduler.step(X, 2, X, return_dict=False), tuple)
    flat = X.reshape(1, 2)
    noisy = scheduler.add_noise(flat, flat, Tensor(3))
    np.testing.assert_allclose(noisy.asnumpy(), (1 + kept[3]) * flat.asnumpy(), rtol=1e-6)
    ratio = diffusers.compute_snr(scheduler, Tensor([5]))
    np.testing.assert_allclose(ratio.asnumpy(), kept[5] / (1 - kept[5]), rtol=1e-5)
    own = diffusers.DDPMScheduler(3, trained_betas=[0.1, 0.2, 0.3])
    np.testing.assert_allclose(own.alphas_cumprod.asnumpy(), [0.9, 0.72, 0.504], rtol=1e-6)


def test_averages_of_weights_move_as_they_say():
    """The first step takes the weights, later ones a growing share; frozen ones are taken."""
    weights = [Parameter(Tensor([1.0, 2.0])), Parameter(Tensor([5.0]), requires_grad=False)]
    ema = diffusers.EMAModel(weights, decay=0.5, min_decay=0.1)
    ema.step(weights)
    assert ema.cur_decay_value == 0.0
    weights[0].set_data(Tensor([3.0, 4.0]))
    weights[1].set_data(Tensor([6.0]))
    ema.step(weights)
    share = 1 - 2 / 11
    np.testing.assert_allclose(ema.shadow_params[0].asnumpy(), [1 + 2 * share, 2 + 2 * share])
    np.testing.assert_allclose(ema.shadow_params[1].asnumpy(), [6.0])
    ema.store(weights)
    ema.copy_to(weights)
    np.testing.assert_allclose(weights[0].asnumpy(), [1 + 2 * share, 2 + 2 * share])
    ema.restore(weights)
    np.testing.assert_allclose(weights[0].asnumpy(), [3.0, 4.0])
    other = diffusers.EMAModel(weights)
    other.load_state_dict(ema.state_dict())
    assert (other.optimization_step, other.decay, other.min_decay) == (2, 0.5, 0.1)
    warm = diffusers.EMAModel(weights, use_ema_warmup=True, inv_gamma=2.0, power=0.75)
    assert warm.get_decay(5) == 1 - (1 + 4 / 2.0) ** -0.75
    assert diffusers.EMAModel(weights, update_after_step=9).get_decay(8) == 0.0


def test_without_mindone_the_package_is_named(monkeypatch):
    """The first network that is asked for says what is missing."""
    monkeypatch.setitem(sys.modules, "mindone", None)
    with pytest.raises(ModuleNotFoundError, match="mindone"):
        _ = diffusers.UNet2DConditionModel
