"""Data modules: loaders of batches by their use."""

from __future__ import annotations

from typing import Any

from mpcore_port_runtime.lightning.hparams import Hyperparameters

__all__ = ["LightningDataModule"]


class LightningDataModule(Hyperparameters):
    """lightning.LightningDataModule."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.trainer: Any = None

    def prepare_data(self) -> None:
        """Fetch what there is to fetch."""

    def setup(self, stage: str) -> None:
        """Make the sets of data."""

    def teardown(self, stage: str) -> None:
        """Let go of them."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` returned."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Return a batch as it is."""
        del dataloader_idx
        return batch

    on_after_batch_transfer = on_before_batch_transfer

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Return a batch as it is: there is one device."""
        del device, dataloader_idx
        return batch
