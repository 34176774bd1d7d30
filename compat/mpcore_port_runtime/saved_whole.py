"""What a network that was saved whole comes back as: its weights, with some of its methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import mindspore as ms

from mpcore.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Weights"]


class Weights(dict[str, Any]):
    """The state of a network that ``save`` was given, by torch's names.

    What torch's Module does with its weights alone it does, too (torch/nn/modules/module.py, torch
    2.13.0): ``half``, ``float`` and ``to`` change it in place, and return it. It is no network.
    """

    def __init__(self, state: Mapping[str, Any], parameters: Iterable[str]) -> None:
        super().__init__(state)
        self._parameters = tuple(parameters)

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Any]]:
        """Yield what was a Parameter, by its name."""
        front = f"{prefix}." if prefix else ""
        yield from (
            (front + name, self[name]) for name in self._parameters if recurse or "." not in name
        )

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """Yield what was a Parameter."""
        yield from (one for _, one in self.named_parameters(recurse=recurse))

    def state_dict(self, *, prefix: str = "", **_: Any) -> dict[str, Any]:
        """Return the weights and buffers."""
        return {prefix + name: one for name, one in self.items()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Take other weights, of the same names where ``strict`` is true.

        Raises:
            CheckpointError: a name is missing, or there is one too many.
        """
        if strict and set(state) != set(self):
            msg = f"`state` must have the names that were saved, {set(state) ^ set(self)} differ"
            raise CheckpointError(msg)
        self.update({name: one for name, one in state.items() if name in self})

    def _in(self, dtype: Any) -> Weights:
        self.update({k: v.astype(dtype) for k, v in self.items() if v.is_floating_point()})
        return self

    def half(self) -> Weights:
        """Have float16 weights."""
        return self._in(ms.float16)

    def bfloat16(self) -> Weights:
        """Have bfloat16 weights."""
        return self._in(ms.bfloat16)

    def float(self) -> Weights:
        """Have float32 weights."""
        return self._in(ms.float32)

    def double(self) -> Weights:
        """Have float64 weights."""
        return self._in(ms.float64)

    def to(self, *args: Any, **kwargs: Any) -> Weights:
        """Have weights of a dtype, where one is given; a device means nothing."""
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, ms.Type)]
        return self._in(given[0]) if given else self

    def requires_grad_(self, requires_grad: bool = True) -> Weights:
        """Return itself: nothing of it learns."""
        del requires_grad
        return self

    def _same(self, *_: Any, **__: Any) -> Weights:
        """Return itself: it lies on no device, and in no mode."""
        return self

    cpu = cuda = npu = eval = train = set_train = share_memory = _same

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Raise.

        Raises:
            CheckpointError: always.
        """
        msg = (
            "a network that was saved whole comes back as its weights, which cannot be called: "
            "make the network and load_state_dict them into it"
        )
        raise CheckpointError(msg)

    def __getattr__(self, name: str) -> NoReturn:
        msg = (
            f"a network that was saved whole comes back as its weights, without `{name}`: make the "
            "network and load_state_dict them into it"
        )
        raise AttributeError(msg)

    def __deepcopy__(self, _: Any) -> Weights:
        return Weights({name: one.copy() for name, one in self.items()}, self._parameters)
