"""What accelerate logs to, and what it writes to come back to: trackers, and states of a run.

Source: src/accelerate/tracking.py, checkpointing.py and accelerator.py, accelerate 1.15.0. Of
trackers TensorBoard and wandb are there. Files are those that ``port.save`` writes, the network's
are safetensors.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mpcore_port_runtime.files import load, save
from mpcore_port_runtime.files import load_file as load_tensors
from mpcore_port_runtime.files import save_file as save_tensors
from mpcore_port_runtime.modules import load_state_dict
from mpcore_port_runtime.modules import state_dict as state_of
from mpcore_port_runtime.tensorboard import SummaryWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["GeneralTracker", "TensorBoardTracker", "WandBTracker", "begun", "newest"]
__all__ += ["place_for", "read_state", "trackers_of", "write_model", "write_state"]


class GeneralTracker:
    """What writes a log; scripts make their own of it, with ``name``, ``tracker`` and ``log``."""

    main_process_only = True
    name: str

    def start(self) -> None:
        """Begin."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Write what the run was started with."""
        raise NotImplementedError

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Write numbers of a step."""
        raise NotImplementedError

    def finish(self) -> None:
        """End."""


class TensorBoardTracker(GeneralTracker):
    """A log for TensorBoard."""

    name = "tensorboard"

    def __init__(self, run_name: str, logging_dir: Any, **kwargs: Any) -> None:
        self.run_name, self.logging_dir = run_name, os.path.join(logging_dir, run_name)
        self.writer = SummaryWriter(self.logging_dir, **kwargs)

    @property
    def tracker(self) -> Any:
        """The writer."""
        return self.writer

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Write settings; those that are no numbers or words raise, as in TensorBoard."""
        self.writer.add_hparams(values, metric_dict={})
        self.writer.flush()

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Write numbers, texts, and numbers together; others are left out."""
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self.writer.add_scalar(name, value, global_step=step, **kwargs)
            elif isinstance(value, str):
                self.writer.add_text(name, value, global_step=step, **kwargs)
            elif isinstance(value, dict):
                self.writer.add_scalars(name, value, global_step=step, **kwargs)
        self.writer.flush()

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Write pictures."""
        for name, value in values.items():
            self.writer.add_images(name, value, global_step=step, **kwargs)

    def finish(self) -> None:
        """Close the file."""
        self.writer.close()


class WandBTracker(GeneralTracker):
    """A log for wandb; tensors in it become numbers and arrays."""

    name = "wandb"

    def __init__(self, run_name: str, **kwargs: Any) -> None:
        wandb = importlib.import_module("wandb")

        self.run_name, self.run = run_name, wandb.init(project=run_name, **kwargs)

    @property
    def tracker(self) -> Any:
        """The run."""
        return self.run

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Write settings."""
        wandb = importlib.import_module("wandb")

        wandb.config.update(values, allow_val_change=True)

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Write what there is."""
        self.run.log({k: _plain(v) for k, v in values.items()}, step=step, **kwargs)

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Write pictures."""
        wandb = importlib.import_module("wandb")

        for name, pictures in values.items():
            self.log({name: [wandb.Image(_plain(one)) for one in pictures]}, step=step, **kwargs)

    def finish(self) -> None:
        """End the run."""
        self.run.finish()


def _plain(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.item() if value.size == 1 else value.asnumpy()


_NAMED = {"tensorboard": TensorBoardTracker, "wandb": WandBTracker}


def trackers_of(log_with: Any, logging_dir: Any) -> list[Any]:
    """Return the names of trackers, and trackers, that an Accelerator is told of.

    Raises:
        NotImplementedError: one of them is not there.
        ValueError: TensorBoard wants a folder.
    """
    found: list[Any] = []
    for one in log_with if isinstance(log_with, (list, tuple)) else [log_with]:
        word = getattr(one, "value", one)  # LoggerType.WANDB
        if word is None:
            continue
        if word == "all":
            have_board = logging_dir is not None
            found += ["tensorboard"] * have_board
            found += ["wandb"] * (importlib.util.find_spec("wandb") is not None)
            continue
        if word not in _NAMED and not (hasattr(one, "log") and hasattr(one, "name")):
            msg = f"`log_with` must be 'tensorboard' or 'wandb', got {one!r}: others are not ported"
            raise NotImplementedError(msg)
        if word == "tensorboard" and logging_dir is None:
            msg = "`log_with='tensorboard'` wants a `project_dir` of the Accelerator"
            raise ValueError(msg)
        found.append(word)
    return found


def begun(
    named: Sequence[Any], project: str, logging_dir: Any, config: Any, more: Any
) -> list[Any]:
    """Return the trackers of a run, which have written what it was started with."""
    made: list[Any] = []
    for one in named:
        given = (more or {}).get(one if isinstance(one, str) else one.name, {})
        if one == "tensorboard":
            made.append(TensorBoardTracker(project, logging_dir, **given))
        else:
            made.append(WandBTracker(project, **given) if one == "wandb" else one)
    for one in made:
        if hasattr(one, "start"):
            one.start()
        if config is not None:
            one.store_init_configuration(config)
    return made


# --- states --------------------------------------------------------------------------------------


def _number(folder: Path) -> int:
    return int(re.findall(r"(\d+)$", folder.name)[0])


def _folders(project_dir: Any) -> list[Path]:
    return sorted((Path(project_dir) / "checkpoints").glob("checkpoint_*"), key=_number)


def newest(project_dir: Any) -> str:
    """Return the folder that was written last by its number."""
    return str(_folders(project_dir)[-1])


def place_for(configuration: Any, output_dir: Any) -> str:
    """Return the folder that a state goes to; the oldest go where there are too many."""
    if not configuration.automatic_checkpoint_naming:
        os.makedirs(output_dir, exist_ok=True)
        return str(os.fspath(output_dir))
    held, limit = _folders(configuration.project_dir), configuration.total_limit
    if limit is not None:
        for folder in held[: max(len(held) + 1 - limit, 0)]:
            shutil.rmtree(folder)
    folder = Path(configuration.project_dir) / "checkpoints"
    folder /= f"checkpoint_{configuration.iteration}"
    if folder.exists():
        msg = f"Checkpoint directory {folder} ({configuration.iteration}) already exists"
        raise ValueError(msg)
    folder.mkdir(parents=True)
    return str(folder)


def _name(word: str, place: int, end: str) -> str:
    return f"{word}_{place}{end}" if place else f"{word}{end}"


def write_model(model: Any, folder: str, *, safe_serialization: bool) -> None:
    """Write the weights of one network, under accelerate's names of files."""
    state = state_of(model)
    if safe_serialization:
        save_tensors(state, os.path.join(folder, "model.safetensors"))
    else:
        save(state, os.path.join(folder, "pytorch_model.bin"))


def write_state(
    folder: str, parts: Any, hooks: Sequence[Callable[..., Any]], *, safe_serialization: bool
) -> str:
    """Write what an Accelerator has prepared; ``hooks`` may take weights away before."""
    weights = [state_of(model) for model in parts.models]
    for hook in hooks:
        hook(parts.models, weights, folder)
    for place, state in enumerate(weights):
        if safe_serialization:
            save_tensors(state, os.path.join(folder, _name("model", place, ".safetensors")))
        else:
            save(state, os.path.join(folder, _name("pytorch_model", place, ".bin")))
    for word, held in (("optimizer", parts.optimizers), ("scheduler", parts.schedulers)):
        for place, one in enumerate(held):
            save(one.state_dict(), os.path.join(folder, _name(word, place, ".bin")))
    if parts.scaler is not None:
        save(parts.scaler.state_dict(), os.path.join(folder, "scaler.pt"))
    save(_random(parts.step), os.path.join(folder, "random_states_0.pkl"))
    for place, one in enumerate(parts.objects):
        save(one.state_dict(), os.path.join(folder, f"custom_checkpoint_{place}.pkl"))
    return folder


def read_state(folder: str, parts: Any, hooks: Sequence[Callable[..., Any]]) -> int:
    """Take back what ``write_state`` wrote; return how many steps there were."""
    if not os.path.isdir(folder):
        msg = f"Tried to find {folder} but folder does not exist"
        raise ValueError(msg)
    models = list(parts.models)
    for hook in hooks:
        hook(models, folder)
    for place, model in enumerate(models):
        path = os.path.join(folder, _name("model", place, ".safetensors"))
        other = os.path.join(folder, _name("pytorch_model", place, ".bin"))
        load_state_dict(model, load_tensors(path) if os.path.exists(path) else load(other))
    for word, held in (("optimizer", parts.optimizers), ("scheduler", parts.schedulers)):
        for place, one in enumerate(held):
            one.load_state_dict(load(os.path.join(folder, _name(word, place, ".bin"))))
    if parts.scaler is not None:
        parts.scaler.load_state_dict(load(os.path.join(folder, "scaler.pt")))
    for place, one in enumerate(parts.objects):
        one.load_state_dict(load(os.path.join(folder, f"custom_checkpoint_{place}.pkl")))
    return _resumed(load(os.path.join(folder, "random_states_0.pkl")))


def _random(step: int) -> dict[str, Any]:
    """Return where the streams of Python, numpy and MindSpore are."""
    version, inside, gauss = random.getstate()
    name, keys, place, has_gauss, cached = np.random.get_state()  # noqa: NPY002  # scripts draw from it
    return {
        "step": step,
        "random_state": [version, list(inside), gauss],
        "numpy_random_seed": [name, np.asarray(keys), int(place), int(has_gauss), float(cached)],
        "mindspore": ms.get_rng_state(),
    }


def _resumed(states: dict[str, Any]) -> int:
    version, inside, gauss = states["random_state"]
    random.setstate((version, tuple(inside), gauss))
    name, keys, *rest = states["numpy_random_seed"]
    np.random.set_state((name, np.asarray(keys, np.uint32), *rest))  # noqa: NPY002
    if states["mindspore"].asnumpy().any():  # MindSpore 2.10 on CPU says nothing of its own
        ms.set_rng_state(states["mindspore"])
    return int(states["step"])
