"""Files for TensorBoard, with the arguments of torch's writer; tensorboardX writes them. Visdom.

Source: torch/utils/tensorboard/writer.py, torch 2.13.0.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from mindspore import Tensor

from mpcore.errors import BackendError, BackendMissingError
from mpcore_port_runtime.refusal import PortWarning

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SummaryWriter", "Visdom"]


def _plain(value: Any) -> Any:
    """Return what tensorboardX reads: arrays for tensors."""
    return value.asnumpy() if isinstance(value, Tensor) else value


class SummaryWriter:
    """Writes scalars, texts, pictures, histograms and figures for TensorBoard.

    Graphs, embeddings, meshes, curves, sounds and films are not written, with a warning.

    Attributes:
        log_dir: the folder.
    """

    def __init__(
        self,
        log_dir: Any = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        """Take torch's arguments.

        Raises:
            BackendMissingError: tensorboardX is not installed.
        """
        try:
            from tensorboardX import SummaryWriter as Writer
        except ImportError as exc:
            msg = 'SummaryWriter needs tensorboardX: pip install "mpcore[monitor]"'
            raise BackendMissingError(msg) from exc
        folder = None if log_dir is None else str(log_dir)
        settings = (comment, purge_step, max_queue, flush_secs, filename_suffix)
        self._writer = Writer(folder, *settings)
        self.log_dir = self._writer.logdir

    def get_logdir(self) -> str:
        """Return the folder."""
        return str(self.log_dir)

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Write one number; both styles of torch's are shown alike."""
        del new_style, double_precision
        self._writer.add_scalar(tag, _plain(scalar_value), global_step, walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Write several numbers for one diagram."""
        values = {name: _plain(value) for name, value in tag_scalar_dict.items()}
        self._writer.add_scalars(main_tag, values, global_step, walltime)

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: int | None = None,
        bins: str = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Write how values are spread."""
        self._writer.add_histogram(tag, _plain(values), global_step, bins, walltime, max_bins)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Write a picture."""
        self._writer.add_image(tag, _plain(img_tensor), global_step, walltime, dataformats)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Write several pictures as one."""
        self._writer.add_images(tag, _plain(img_tensor), global_step, walltime, dataformats)

    def add_text(
        self,
        tag: str,
        text_string: str,
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Write a text."""
        self._writer.add_text(tag, text_string, global_step, walltime)

    def add_figure(
        self,
        tag: str,
        figure: Any,
        global_step: int | None = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """Write a figure of matplotlib's."""
        self._writer.add_figure(tag, figure, global_step, close, walltime)

    def add_hparams(
        self,
        hparam_dict: Mapping[str, Any],
        metric_dict: Mapping[str, Any],
        hparam_domain_discrete: Any = None,
        run_name: str | None = None,
        global_step: int | None = None,
    ) -> None:
        """Write the settings of a run and what came out."""
        if hparam_domain_discrete is not None:
            msg = "`hparam_domain_discrete` must be None: tensorboardX has no such argument"
            raise BackendError(msg)
        settings = {name: _plain(value) for name, value in hparam_dict.items()}
        found = {name: _plain(value) for name, value in metric_dict.items()}
        self._writer.add_hparams(settings, found, run_name, global_step)

    def flush(self) -> None:
        """Write what is buffered."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is buffered, and close the files."""
        self._writer.close()

    def __enter__(self) -> SummaryWriter:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self.close()

    def __getattr__(self, name: str) -> Any:
        """Return what writes nothing and warns, for graphs, embeddings, sounds and the like.

        What adds nothing is tensorboardX's own: its files, its scalars.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        if not name.startswith("add_"):
            return getattr(self._writer, name)
        text = f"SummaryWriter.{name} is torch's own: nothing is written"
        return lambda *_, **__: warnings.warn(text, PortWarning, stacklevel=2)


class Visdom:
    """A visdom window whose methods take tensors of MindSpore: they get arrays, in lists too.

    Args:
        args: what visdom's own takes, as are ``settings``.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._window = importlib.import_module("visdom").Visdom(*args, **settings)

    def __getattr__(self, name: str) -> Any:
        """Return what the window has; a method takes tensors."""
        held = getattr(self._window, name)
        if not callable(held):
            return held

        def call(*args: Any, **settings: Any) -> Any:
            return held(*map(_arrays, args), **{key: _arrays(one) for key, one in settings.items()})

        return call


def _arrays(value: Any) -> Any:
    """Return arrays for tensors, in lists and dictionaries too."""
    if isinstance(value, list | tuple):
        return type(value)([_arrays(one) for one in value])
    if isinstance(value, dict):
        return {name: _arrays(one) for name, one in value.items()}
    return _plain(value)
