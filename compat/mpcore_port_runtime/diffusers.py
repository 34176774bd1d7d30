"""Networks and noise schedulers of diffusers in ports: mindone's, with the habits of diffusers.

``port.diffusers.UNet2DConditionModel`` is mindone's class of that name, which has the same layers
under the same names. What differs is made torch's here: outputs by name unless a call says
otherwise, a latent distribution, training mode of a new network, and the numbers of a schedule.

Source: diffusers 0.35.2 and mindone 0.5.0, compared class by class on MindSpore's CPU build
(tests/port/test_mindone.py); kernels that this build lacks were made of others there.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cache, wraps
from inspect import signature
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mpcore_port_runtime import of_mindone
from mpcore_port_runtime.in_place import put
from mpcore_port_runtime.modules import parameters, requires_grad_
from mpcore_port_runtime.outputs import BaseOutput
from mpcore_port_runtime.overridden import start_training
from mpcore_port_runtime.random import Generator, randn
from mpcore_port_runtime.recorded import unrecorded

__all__ = ["AutoencoderKLOutput", "DiagonalGaussianDistribution", "EMAModel", "compute_snr"]

NETWORKS = frozenset(("AutoencoderKL", "UNet2DConditionModel", "UNet2DModel"))
"""Networks whose outputs and gradients are diffusers' on torch, with equal weights."""

SCHEDULERS = frozenset(("DDIMScheduler", "DDPMScheduler", "PNDMScheduler"))
"""Schedulers whose noise, velocities and steps are diffusers' on torch."""

_OTHER_FORMS = (
    *("torch_dtype", "device_map", "quantization_config", "variant", "output_loading_info"),
    *("mindspore_dtype", "parallel_config", "from_flax"),
)
_DRAWN = "numbers of a torch.Generator in `step` were not compared: leave `generator` out"


def __getattr__(name: str) -> Any:
    """Return one class by its name in diffusers."""
    if name in NETWORKS:
        return _network(of_mindone.native("diffusers", name))
    if name in SCHEDULERS:
        return _scheduler(of_mindone.native("diffusers", name))
    msg = f"{name} of mindone was not compared with diffusers'"
    raise AttributeError(msg)


def _named(function: Any) -> Any:
    """Return a method of mindone that gives outputs by name unless ``return_dict`` says no."""
    inputs = signature(function)

    @wraps(function)
    def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = inputs.bind(self, *args, **kwargs)
        given.arguments.setdefault("return_dict", True)
        return function(*given.args, **given.kwargs)

    return asked


@cache
def _network(native: Any) -> Any:
    """Return a network of mindone with torch's habits."""

    @wraps(native.__init__)  # its signature says what a configuration may have
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # a class is made
        native.__init__(self, *args, **kwargs)
        _order(self)
        start_training(self)

    def save_pretrained(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        native.save_pretrained(self, save_directory, *args, **kwargs)
        of_mindone.say_torch(save_directory)

    parts: dict[str, Any] = {
        "__init__": __init__,
        "construct": _named(native.construct),
        "enable_gradient_checkpointing": of_mindone.keep_activations,
        "disable_gradient_checkpointing": lambda _: None,
        "enable_xformers_memory_efficient_attention": lambda *_: None,  # attention as it is
        "save_pretrained": save_pretrained,
        "requires_grad_": requires_grad_,
        "device": property(lambda self: parameters(self)[0].device),
    }
    if hasattr(native, "encode"):
        parts |= {"encode": _distributed(native.encode), "decode": _named(native.decode)}
        parts["construct"] = _coded
    return of_mindone.network(native, parts, _check_form)


def _order(network: Any) -> None:
    """Have layers in torch's order, in which optimizers and averages number weights.

    diffusers makes an empty list of ``up_blocks`` before ``mid_block``, mindone a full one behind.
    """
    for _, cell in network.cells_and_names():
        held = cell._cells
        if "up_blocks" not in held or "mid_block" not in held:
            continue
        names = [name for name in held if name != "mid_block"]
        names.insert(names.index("up_blocks") + 1, "mid_block")
        parts = dict(held)
        held.clear()
        held.update((name, parts[name]) for name in names)


def _check_form(given: dict[str, Any]) -> None:
    other = [name for name in _OTHER_FORMS if given.get(name) not in (None, False, ms.float32)]
    if other:
        msg = f"`{other[0]}` must be left out: mindone's meaning was not compared with diffusers'"
        raise NotImplementedError(msg)
    for name in _OTHER_FORMS:
        given.pop(name, None)


def _distributed(encode: Any) -> Any:
    """Return an encoder whose output holds a distribution, where mindone gives its moments."""

    @wraps(encode)
    def asked(self: Any, x: Any, return_dict: bool = True) -> Any:
        found = DiagonalGaussianDistribution(encode(self, x, return_dict=False)[0])
        return AutoencoderKLOutput(latent_dist=found) if return_dict else (found,)

    return asked


def _coded(
    self: Any,
    sample: Any,
    sample_posterior: bool = False,
    return_dict: bool = True,
    generator: Generator | None = None,
) -> Any:
    """Encode pictures and decode what comes: ``construct`` of an autoencoder."""
    found = self.encode(sample).latent_dist
    latents = found.sample(generator) if sample_posterior else found.mode()
    return self.decode(latents, return_dict=return_dict)


class DiagonalGaussianDistribution:
    """The distribution of latents, by its means and the logarithms of its variances.

    Source: diffusers 0.35.2 ``models/autoencoders/vae.py``.
    """

    def __init__(self, parameters: Any, deterministic: bool = False) -> None:
        self.parameters = parameters
        self.mean, logvar = ops.chunk(parameters, 2, axis=1)
        self.logvar = ops.clamp(logvar, -30.0, 20.0)
        self.deterministic = deterministic
        self.std, self.var = ops.exp(0.5 * self.logvar), ops.exp(self.logvar)
        if deterministic:
            self.var = self.std = ops.zeros_like(self.mean)

    def sample(self, generator: Generator | None = None) -> Any:
        """Return latents that are drawn."""
        noise = randn(tuple(self.mean.shape), dtype=self.parameters.dtype, generator=generator)
        return self.mean + self.std * noise

    def mode(self) -> Any:
        """Return the likeliest latents: the means."""
        return self.mean

    def kl(self, other: DiagonalGaussianDistribution | None = None) -> Any:
        """Return how far it is from another distribution, or the standard one."""
        if self.deterministic:
            return Tensor([0.0], ms.float32)
        if other is None:
            terms = self.mean**2 + self.var - 1.0 - self.logvar
        else:
            apart = (self.mean - other.mean) ** 2 / other.var
            terms = apart + self.var / other.var - 1.0 - self.logvar + other.logvar
        return 0.5 * terms.sum((1, 2, 3))

    def nll(self, sample: Any, dims: Any = (1, 2, 3)) -> Any:
        """Return the negative logarithm of the likelihood of latents."""
        if self.deterministic:
            return Tensor([0.0], ms.float32)
        terms = math.log(2.0 * math.pi) + self.logvar + (sample - self.mean) ** 2 / self.var
        return 0.5 * terms.sum(tuple(dims))


@dataclass
class AutoencoderKLOutput(BaseOutput):
    """What an encoder gives."""

    latent_dist: Any = None


# --- schedulers ---------------------------------------------------------------------------------


@cache
def _scheduler(native: Any) -> Any:
    """Return a scheduler of mindone with torch's habits, and torch's numbers."""

    @wraps(native.__init__)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # a class is made
        native.__init__(self, *args, **kwargs)
        _renumber(self)

    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("device", None)
        native.set_timesteps(self, *args, **kwargs)

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("generator") is not None:
            raise NotImplementedError(_DRAWN)
        return _named(native.step)(self, *args, **kwargs)

    parts = {
        "__init__": __init__,
        "set_timesteps": wraps(native.set_timesteps)(set_timesteps),
        "step": wraps(native.step)(step),
    }
    flat = ("add_noise", "get_velocity")
    parts |= {name: _at_times(getattr(native, name)) for name in flat if hasattr(native, name)}
    return of_mindone.heir(native, parts)


def _at_times(function: Any) -> Any:
    """Return a method that takes one timestep for all, too."""

    @wraps(function)
    def asked(self: Any, held: Any, noise: Any, timesteps: Any) -> Any:
        return function(self, held, noise, timesteps.reshape(-1))

    return asked


def _renumber(scheduler: Any) -> None:
    """Give a scheduler the numbers that torch has: mindone's are a rounding apart.

    torch's linspace counts in float32 from both ends, its cumprod on CPU in float64.
    Source: torch 2.13.0 ``RangeFactoriesKernel.cpp`` and ``ReduceOpsKernel.cpp`` of native/cpu.
    """
    config = scheduler.config
    ends = float(config.beta_start), float(config.beta_end)
    steps = int(config.num_train_timesteps)
    if config.trained_betas is not None:
        betas = scheduler.betas.asnumpy()
    elif config.beta_schedule == "linear":
        betas = _spaced(*ends, steps)
    elif config.beta_schedule == "scaled_linear":
        betas = _spaced(ends[0] ** 0.5, ends[1] ** 0.5, steps) ** 2
    else:
        betas = scheduler.betas.asnumpy()
    scheduler.betas = Tensor(betas)
    if config.get("rescale_betas_zero_snr"):
        rescaled = sys.modules[type(scheduler).__module__].rescale_zero_terminal_snr
        scheduler.betas = rescaled(scheduler.betas)
    scheduler.alphas = 1.0 - scheduler.betas
    product = np.cumprod(scheduler.alphas.asnumpy().astype(np.float64)).astype(np.float32)
    scheduler.alphas_cumprod = Tensor(product)
    if hasattr(scheduler, "final_alpha_cumprod") and not config.set_alpha_to_one:
        scheduler.final_alpha_cumprod = scheduler.alphas_cumprod[0]


def _spaced(start: float, end: float, steps: int) -> Any:
    """Return torch.linspace in float32, whose products are not rounded before they are added."""
    first, last = np.float32(start), np.float32(end)
    step = np.float64((last - first) / np.float32(max(steps - 1, 1)))
    places = np.arange(steps)
    behind = np.float64(last) - step * places[::-1]
    made = np.where(places < steps // 2, np.float64(first) + step * places, behind)
    return made.astype(np.float32)


def compute_snr(noise_scheduler: Any, timesteps: Any) -> Any:
    """Return diffusers.training_utils.compute_snr: signal by noise at some timesteps."""
    kept = noise_scheduler.alphas_cumprod
    signal, noise = kept**0.5, (1.0 - kept) ** 0.5
    return (signal[timesteps].float() / noise[timesteps].float()) ** 2


# --- what training scripts take of diffusers.training_utils -------------------------------------


class EMAModel:
    """diffusers.training_utils.EMAModel: averages of weights, which ``step`` moves.

    Source: diffusers 0.35.2 ``training_utils.py``.
    """

    def __init__(
        self,
        parameters: Any,
        decay: float = 0.9999,
        min_decay: float = 0.0,
        update_after_step: int = 0,
        use_ema_warmup: bool = False,
        inv_gamma: float = 1.0,
        power: float = 2 / 3,
        foreach: bool = False,
        model_cls: Any = None,
        model_config: Any = None,
        **kwargs: Any,
    ) -> None:
        given, of_network = _weights_of(parameters)
        self.shadow_params = _copies(given)
        self.temp_stored_params: list[Any] | None = None
        self.decay = decay if kwargs.get("max_value") is None else kwargs["max_value"]
        self.min_decay = min_decay if kwargs.get("min_value") is None else kwargs["min_value"]
        self.update_after_step = update_after_step
        self.use_ema_warmup = use_ema_warmup or of_network
        self.inv_gamma, self.power = inv_gamma, power
        self.optimization_step = 0
        self.cur_decay_value: float | None = None
        self.foreach = foreach
        self.model_cls, self.model_config = model_cls, model_config

    @classmethod
    def from_pretrained(cls, path: Any, model_cls: Any, foreach: bool = False) -> EMAModel:
        """Return averages that ``save_pretrained`` has written."""
        _, given = model_cls.from_config(path, return_unused_kwargs=True)
        model = model_cls.from_pretrained(path)
        config = model.config
        made = cls(parameters(model), model_cls=model_cls, model_config=config, foreach=foreach)
        made.load_state_dict(given)
        return made

    def save_pretrained(self, path: Any) -> None:
        """Write the averages as a network, with how they are made in its configuration."""
        for name in ("model_cls", "model_config"):
            if getattr(self, name) is None:
                msg = f"`save_pretrained` needs the `{name}` of __init__"
                raise ValueError(msg)
        model = self.model_cls.from_config(self.model_config)
        state = self.state_dict()
        state.pop("shadow_params")
        model.register_to_config(**state)
        self.copy_to(parameters(model))
        model.save_pretrained(path)

    def get_decay(self, optimization_step: int) -> float:
        """Return how much of an average stays at a step."""
        step = max(0, optimization_step - self.update_after_step - 1)
        if step <= 0:
            return 0.0
        if self.use_ema_warmup:
            decay = 1 - (1 + step / self.inv_gamma) ** -self.power
        else:
            decay = (1 + step) / (10 + step)
        return float(max(min(decay, self.decay), self.min_decay))

    def step(self, parameters: Any) -> None:
        """Move the averages to the weights; those that are frozen are taken as they are."""
        given, _ = _weights_of(parameters)
        self.optimization_step += 1
        self.cur_decay_value = self.get_decay(self.optimization_step)
        share = 1 - self.cur_decay_value
        with unrecorded():
            self.shadow_params = [
                shadow - share * (shadow - param.value())
                if param.requires_grad
                else param.value().copy()
                for shadow, param in zip(self.shadow_params, given, strict=False)
            ] + self.shadow_params[len(given) :]

    def copy_to(self, parameters: Any) -> None:
        """Give weights the values of their averages."""
        for shadow, param in zip(self.shadow_params, list(parameters), strict=False):
            put(param, shadow)

    def store(self, parameters: Any) -> None:
        """Keep weights as they are, for ``restore``."""
        self.temp_stored_params = _copies(parameters)

    def restore(self, parameters: Any) -> None:
        """Give weights what ``store`` has kept."""
        if self.temp_stored_params is None:
            msg = "`restore` must come after `store`, no weights were kept"
            raise RuntimeError(msg)
        for kept, param in zip(self.temp_stored_params, list(parameters), strict=False):
            put(param, kept)
        self.temp_stored_params = None

    def to(self, device: Any = None, dtype: Any = None, non_blocking: bool = False) -> None:
        """Give the averages another type; there is one device."""
        del device, non_blocking
        if dtype is not None:
            self.shadow_params = [one.astype(dtype) for one in self.shadow_params]

    def pin_memory(self) -> None:
        """Leave the averages where they are."""

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and how they are made."""
        return {name: getattr(self, name) for name in _HELD}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        decay = state_dict.get("decay", self.decay)
        if not 0.0 <= decay <= 1.0:
            msg = f"`decay` must be in [0, 1], got {decay}"
            raise ValueError(msg)
        for name in _HELD:
            if state_dict.get(name) is not None:
                held = state_dict[name]
                setattr(self, name, _copies(held) if name == "shadow_params" else held)


_HELD = (
    *("decay", "min_decay", "optimization_step", "update_after_step", "use_ema_warmup"),
    *("inv_gamma", "power", "shadow_params"),
)


def _weights_of(given: Any) -> tuple[list[Any], bool]:
    """Return weights, and whether they came as a network."""
    of_network = isinstance(given, nn.Cell)
    return (parameters(given) if of_network else list(given)), of_network


def _copies(tensors: Any) -> list[Any]:
    return [Tensor(one).copy() for one in tensors]
