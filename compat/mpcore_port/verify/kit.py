"""What a stand-in needs of torch: a small network, its parameters, an optimizer."""

from __future__ import annotations

import importlib.util
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from mpcore_port.stubs.devices import all_placed
from mpcore_port.verify.asked import is_private, only_asks
from mpcore_port.verify.scaler import CallableScaler

if TYPE_CHECKING:
    from mpcore_port.verify.stand_in import StandIn

__all__ = ["LIKE_A_LAYER", "TorchKit", "first_weights"]

_SIZE = 0.2
LIKE_A_LAYER = {"weight": "last", "bias": "shift"}
"""What a small network has that is asked for as layers are: optimizers are given groups of them."""


def first_weights(name: str, classes: int) -> dict[str, Any]:
    """Return the weights that a network of that name begins with: those of torch, as arrays."""
    from mpcore_port.verify.stand_in import shapes_of

    random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return {
        key: (_SIZE * torch.randn(shape, generator=random, device="cpu")).numpy()
        for key, shape in shapes_of(classes).items()
    }


class _Net(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A small network that takes any tensors."""

    def __init__(self, owner: StandIn, name: str, classes: int) -> None:
        super().__init__()
        self.name, self.classes = name, classes
        for key, array in first_weights(name, classes).items():
            self.register_parameter(key, nn.Parameter(torch.from_numpy(array)))
        self.__dict__["_mpcore_owner"] = owner  # no part of it

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the form says, of the first tensor; as many as the caller takes apart."""
        from mpcore_port.verify.stand_in import answer

        return answer(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in LIKE_A_LAYER:
                return getattr(self, LIKE_A_LAYER[name])
            held = "_mpcore_owner" in self.__dict__
            if not held or is_private(name, sys._getframe(1)) or only_asks(sys._getframe(1)):
                raise
            return self if name == "module" else self.__dict__["_mpcore_owner"]._mpcore_part(name)


def _folder_of(package: str) -> str:
    """Return where a package lies; it is not imported."""
    found = importlib.util.find_spec(package)
    return str(Path(str(found.origin)).parent) if found is not None else package


class TorchKit:
    """What a stand-in is made of, in torch.

    Attributes:
        moves: methods that give back the network.
        of_module: methods that are the network's own.
        between: where files are whose functions hand on what a network gives.
        given: the parameters that optimizers were given.
    """

    Tensor, Module, Parameter, float32 = torch.Tensor, nn.Module, nn.Parameter, torch.float32
    given: ClassVar[list[Any]] = []
    moves: ClassVar = {
        *("to", "cuda", "npu", "cpu", "half", "float", "double", "bfloat16", "type"),
        *("requires_grad_", "train", "eval", "apply", "compile", "share_memory"),
    }
    of_module: ClassVar = {
        *("parameters", "named_parameters", "buffers", "named_buffers", "modules", "children"),
        *("named_modules", "named_children", "zero_grad", "state_dict"),
    }
    between = (
        *(_folder_of(name) for name in ("torch", "mpcore_torch", "mpcore_compat")),
        str(Path(__file__).parents[2] / "mpcore_port/stubs"),
    )

    def network(self, owner: StandIn, name: str, classes: int) -> Any:
        """Return a small network, on the device: whatever gives networks may have put it there."""
        return all_placed(_Net(owner, name, classes))

    def parameters(self, network: Any) -> list[Any]:
        """Return the parameters of a network."""
        return list(network.parameters())

    def scaler(self) -> Any:
        """Return what stands for a class around a scaler."""
        held = getattr(torch, "npu", torch.cuda)
        return CallableScaler(held.amp.GradScaler(), nn.utils.clip_grad_norm_)

    def number(self, value: float) -> Any:
        """Return a number as a tensor."""
        return torch.tensor(float(value))

    def freeze(self, network: Any) -> None:
        """Let the parameters of a network be constants."""
        network.requires_grad_(requires_grad=False)

    def optimizer(self, groups: list[Any]) -> Any:
        """Return the optimizer that stands in for one that is not there."""
        made = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
        vars(made).update(optim=made, optimizer=made)  # as a class around an optimizer has it
        return made

    def shares(self, labels: Any, classes: int) -> Any:
        """Return labels as shares of each class: a row of them for each; shares stay."""
        if labels.is_floating_point():
            return labels
        return nn.functional.one_hot(labels.long() % classes, classes).float()

    def relu(self, x: Any) -> Any:
        """Return max(x, 0)."""
        return torch.relu(x)

    def linear(self, x: Any, weight: Any) -> Any:
        """Return the product with a transposed weight."""
        return nn.functional.linear(x, weight)

    def widened(self, x: Any, size: int) -> Any:
        """Return rows of ``size`` numbers, zeros behind those of ``x``."""
        return nn.functional.pad(x, (0, size - x.shape[1]))
