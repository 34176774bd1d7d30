"""What torch makes of a call, asked without computing: dtypes that come out, casts inside of it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from mpcore.errors import GraphError
from mpcore.graph.ir import is_16_bit, is_float
from mpcore_torch.graph_lift import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpcore.graph.ir import Graph, Node
    from mpcore_torch.graph_lift import Piece

__all__ = ["Facts", "arguments", "fill"]


def fill(value: Any, of: Callable[[str], Any]) -> Any:
    """Return arguments with ``of(role)`` in the place of every slot."""
    if isinstance(value, Slot):
        return of(value.role)
    if isinstance(value, (tuple, list)):
        return type(value)([fill(item, of) for item in value])
    return value


def arguments(target: Any, given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments by name as a call takes them: in order, then by keyword."""
    if not isinstance(target, OpOverload):
        numbered = [given[key] for key in sorted(k for k in given if k.isdigit())]
        return tuple(numbered), {k: v for k, v in given.items() if not k.isdigit()}
    schema = target._schema.arguments
    names = [argument.name for argument in schema if not argument.kwarg_only]
    last = max((i for i, name in enumerate(names) if name in given), default=-1)
    defaults = {argument.name: argument.default_value for argument in schema}
    args = [given.get(name, defaults[name]) for name in names[: last + 1]]
    return tuple(args), {key: given[key] for key in given if key not in names}


class Facts:
    """Answers for one piece on one device.

    Attributes:
        low: the 16-bit dtype of the policy.
        device: type of the device.
    """

    def __init__(self, piece: Piece, low: str, device: str) -> None:
        """Know the piece; nothing is computed."""
        self.piece, self.low, self.device = piece, low, device
        self._known: dict[Any, tuple[str, ...]] = {}
        self._inside: dict[Any, bool] = {}
        self.native: set[str] = set()

    def results(self, graph: Graph, node: Node, dtypes: Sequence[str]) -> tuple[str, ...]:
        """Return what comes out of a node; see ``mpcore.graph.flow.Results``."""
        key = (node.name, tuple(dtypes))
        if key not in self._known:
            before = tuple(graph.value[name].dtype for name in node.inputs)
            if before == key[1] and node.name not in self.native:
                self._known[key] = tuple(graph.value[name].dtype for name in node.outputs)
            else:
                made = self._run(node, dtypes, native=node.name in self.native)
                self._known[key] = made
        return self._known[key]

    def _source(self, name: str) -> str:
        """Return the lifted value that a value of a changed graph is like."""
        while name not in self.piece.fakes:
            name = name.rpartition(".")[0]
        return name

    def casts_inside(self, node: Node) -> bool:
        """Return whether autocast would cast inside of a call that no list names."""
        call = self.piece.calls.get(node.name)
        target = getattr(call, "target", None)
        if node.op == "cast":
            return False  # it is what it is
        if not isinstance(target, OpOverload) or not torch._C._dispatch_has_kernel_for_dispatch_key(
            target.name(), "CompositeImplicitAutograd"
        ):
            return False
        floats = [i for i in node.inputs if _floating(self.piece.fakes[i])]
        if not floats:
            return False
        if not is_16_bit(self.low):
            return False
        key = (target, tuple(str(self.piece.fakes[i].shape) for i in floats))
        if key not in self._inside:
            self._inside[key] = any(self._watched(node, d) for d in ("float32", self.low))
        return self._inside[key]

    def _watched(self, node: Node, dtype: str) -> bool:
        dtypes = [
            dtype if _floating(self.piece.fakes[name]) and i not in node.keeps else ""
            for i, name in enumerate(node.inputs)
        ]
        watch = _Casts()
        try:
            self._run(node, dtypes, native=True, watch=watch)
        except GraphError:
            return True  # it cannot be told; torch's own list decides there
        return watch.seen

    def _run(
        self, node: Node, dtypes: Sequence[str], *, native: bool, watch: Any = None
    ) -> tuple[str, ...]:
        piece = self.piece
        call = piece.calls.get(node.name)
        if call is None:
            return tuple(dtypes[:1])  # one of ours: hands on what comes in
        at = dict(zip(node.roles, zip(node.inputs, dtypes, strict=True), strict=True))

        def value(role: str) -> Any:
            name, dtype = at[role]
            fake = piece.fakes.get(name)
            if fake is None:  # of a node that was put in: as what it reads first
                fake = piece.fakes[self._source(name)]
            wanted = bool(dtype) and is_float(dtype) and _floating(fake)
            return fake.to(getattr(torch, dtype)) if wanted else fake

        low = getattr(torch, self.low)
        region = torch.autocast(self.device, low) if native else contextlib.nullcontext()
        try:
            with piece.fake_mode, torch.no_grad():
                given = {key: fill(item, value) for key, item in call.args.items()}
                args, kwargs = arguments(call.target, given)
                with region, watch or _Casts():
                    made = call.target(*args, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError) as exc:
            msg = f"{node.name} does not take {', '.join(d for d in dtypes if d)}: {exc}"
            raise GraphError(msg.partition("\n")[0]) from exc
        found = list(made) if isinstance(made, (tuple, list)) else [made]
        return tuple(_dtype(item) for item in found[: len(node.outputs)])


class _Casts(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """Sees whether something is cast between float32 and 16 bits."""

    seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run ``func``, and look."""
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and made.dtype != args[0].dtype:
            self.seen = True
        return made


def _floating(fake: Any) -> bool:
    return isinstance(fake, torch.Tensor) and is_float(str(fake.dtype).removeprefix("torch."))


def _dtype(made: Any) -> str:
    if isinstance(made, torch.Tensor):
        return str(made.dtype).removeprefix("torch.")
    return type(made).__name__
