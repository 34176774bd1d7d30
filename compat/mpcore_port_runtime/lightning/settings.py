"""What a Trainer is made with, by the names of lightning 2.6.6 and of pytorch_lightning 1.9.

Names that say how a machine is used, or what is shown, mean nothing here. Others raise where they
ask for what is not ported.
"""

from __future__ import annotations

from typing import Any

__all__: list[str] = []

_TRAINED = {
    "max_epochs": None,
    "min_epochs": None,
    "max_steps": -1,
    "min_steps": None,
    "limit_train_batches": 1.0,
    "limit_val_batches": 1.0,
    "limit_test_batches": 1.0,
    "limit_predict_batches": 1.0,
    "val_check_interval": 1.0,
    "check_val_every_n_epoch": 1,
    "num_sanity_val_steps": 2,
    "log_every_n_steps": 50,
    "accumulate_grad_batches": 1,
    "gradient_clip_val": None,
    "gradient_clip_algorithm": None,
    "fast_dev_run": False,
    "reload_dataloaders_every_n_epochs": 0,
    "enable_checkpointing": True,
    "default_root_dir": None,
    "precision": None,
    "accelerator": "auto",
    "strategy": "auto",
    "devices": "auto",
    "num_nodes": 1,
    "logger": None,
    "callbacks": None,
}
"""What is asked, and Lightning's default."""

_OLDER = {
    "distributed_backend": "strategy",
    "gpus": "devices",
    "checkpoint_callback": "enable_checkpointing",
    "resume_from_checkpoint": "ckpt_path",
    "row_log_interval": "log_every_n_steps",
}

_SILENT = (
    *("benchmark", "deterministic", "enable_progress_bar", "enable_model_summary", "profiler"),
    *("inference_mode", "use_distributed_sampler", "detect_anomaly", "barebones", "model_registry"),
    *("sync_batchnorm", "enable_autolog_hparams", "progress_bar_refresh_rate", "weights_summary"),
    *("replace_sampler_ddp", "auto_select_gpus", "process_position", "flush_logs_every_n_steps"),
    *("log_gpu_memory", "move_metrics_to_cpu", "prepare_data_per_node", "num_processes"),
    *("amp_backend", "weights_save_path", "terminate_on_nan"),
)
"""They change no number of one device."""

_LEFT_OUT: dict[str, tuple[Any, ...]] = {
    "plugins": (None, [], ()),
    "max_time": (None,),
    "overfit_batches": (0, 0.0),
    "amp_level": (None, "O1"),
    "auto_lr_find": (False, None),
    "auto_scale_batch_size": (False, None),
    "track_grad_norm": (-1, None),
    "truncated_bptt_steps": (None,),
    "stochastic_weight_avg": (False,),
    "multiple_trainloader_mode": ("max_size_cycle",),
    "reload_dataloaders_every_epoch": (False,),
    "tpu_cores": (None,),
    "ipus": (None,),
}
"""Names whose other values are not ported."""


def settings_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a Trainer, those that were not given with Lightning's defaults.

    Raises:
        NotImplementedError: something is asked for that is not ported.
        TypeError: no version has such a name.
    """
    found = {**_TRAINED, "ckpt_path": None}
    for name, value in given.items():
        if name in _LEFT_OUT:
            if value not in _LEFT_OUT[name]:
                msg = f"`{name}` must be left out: the Trainer is ported without, got {value!r}"
                raise NotImplementedError(msg)
        elif name in _OLDER:
            if value is not None:
                found[_OLDER[name]] = value
        elif name in _TRAINED:
            found[name] = value
        elif name not in _SILENT:
            msg = f"Trainer takes no {name!r}"
            raise TypeError(msg)
        elif name == "amp_backend" and value == "apex":
            msg = "`amp_backend` must be 'native': apex's is not ported in the Trainer"
            raise NotImplementedError(msg)
    return _checked(found)


def _checked(found: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(found["accumulate_grad_batches"], int):
        msg = "`accumulate_grad_batches` must be a number: schedules of it are not ported"
        raise NotImplementedError(msg)
    if isinstance(found["val_check_interval"], (str, dict)) or hasattr(
        found["val_check_interval"], "total_seconds"
    ):
        msg = "`val_check_interval` must be a number: times are not ported"
        raise NotImplementedError(msg)
    if found["max_steps"] is None:
        found["max_steps"] = -1  # of older versions
    if found["max_epochs"] is None:
        found["max_epochs"] = 1000 if found["max_steps"] == -1 else -1
    if found["fast_dev_run"]:
        _few(found, int(found["fast_dev_run"]))
    return found


def _few(found: dict[str, Any], batches: int) -> None:
    """Have a run of few batches: no loggers, no files, one epoch."""
    for name in ("train", "val", "test", "predict"):
        found[f"limit_{name}_batches"] = batches
    found |= {"max_steps": batches, "max_epochs": 1, "num_sanity_val_steps": 0}
    found |= {"val_check_interval": 1.0, "check_val_every_n_epoch": 1, "logger": False}
    found |= {"enable_checkpointing": False}


def devices_of(found: dict[str, Any]) -> Any:
    """Return how many devices are asked for; 0 and None of ``gpus`` are the one that is there."""
    asked = found["devices"]
    return 1 if asked in (0, None, "0") or asked is True else asked


def batches_of(loader: Any, limit: Any) -> float:
    """Return how many batches of a loader are run; inf where it does not know how many it has."""
    try:
        length: float = len(loader)
    except TypeError:
        length = float("inf")
    if isinstance(limit, int):
        return min(length, limit)
    if length == float("inf"):
        if limit != 1.0:
            msg = "`limit_*_batches` must be 1.0 or a whole number: the loader has no length"
            raise ValueError(msg)
        return length
    found = int(length * limit)
    if not found and limit > 0 and length:
        msg = f"{limit} of {int(length)} batches is less than one"
        raise ValueError(msg)
    return found
