"""A network by graph as MindSpore's compiler reads it: a branch for each kind of call.

Eager mode chooses a graph in Python. A compiled call cannot: its branches ask for shapes and
dtypes, which the compiler knows, so that one of them is left.
"""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

from mindspore import Tensor, nn

from mpcore_mindspore.graph_source import module_of
from mpcore_mindspore.graph_trace import eagerly, flags_of, frozen_in
from mpcore_mindspore.layers import dtype_name
from mpcore_mindspore.snapshot import left_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mpcore_mindspore.graph_run import Lowered, Runner

__all__ = ["ByGraph", "Meets"]

_PLAIN = (bool, int, float, str, type(None))


class ByGraph(nn.Cell):  # type: ignore[misc]  # mindspore is not followed
    """Stands behind the ``construct`` of a network: eager mode calls it, the compiler reads it.

    Its own ``construct`` is a property: the compiler looks it up while it compiles, and finds a
    branch for each graph of the network as it is then (which Cells train, plain attributes).
    """

    def __init__(self, runner: Runner) -> None:
        """Take what runs the graphs; they are no members, a Cell would keep their Parameters."""
        super().__init__(auto_prefix=False)
        object.__setattr__(self, "runner", runner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph for this call."""
        return self.runner(*args, **kwargs)

    @property
    def construct(self) -> Any:
        """What the compiler is to read."""
        net = self.runner.network
        now = (flags_of(net), frozen_in(net))
        found = [lowered for key, lowered in self.runner.met.items() if key[1:] == now]
        for i, lowered in enumerate(found):
            object.__setattr__(self, f"lowered_{i}", lowered.cell)
        return types.MethodType(module_of(_text(net, found)).construct, self)


def _text(net: nn.Cell, found: list[Lowered]) -> str:
    """Return the source of a ``construct`` that calls the graph of each kind of arguments."""
    params = list(inspect.signature(type(net).construct).parameters.values())[1:]
    lines = [f"def construct({', '.join(['self', *_signature(params)])}):"]
    for i, lowered in enumerate(found):
        values = lowered.piece.arguments.values
        conditions = _conditions(params, values)
        if conditions is None:
            continue
        for depth, condition in enumerate(conditions, 1):  # no `and`: it would read all of them
            lines.append(f"{'    ' * depth}if {condition}:")
        given = ", ".join(_places(params, len(values)))
        lines.append(f"{'    ' * (len(conditions) + 1)}return self.lowered_{i}({given})")
    message = (
        f"by='graph' has no graph for these arguments of {type(net).__name__}: run it once with "
        "their shapes in PYNATIVE_MODE, under `with amp.autocast()`, before it is compiled "
        "(amp.step and a train cell that is called by itself do so)"
    )
    lines.append(f"    raise ValueError({message!r})")
    return "import mindspore as ms\nfrom mindspore import Tensor\n\n\n" + "\n".join(lines) + "\n"


def _signature(params: list[inspect.Parameter]) -> Iterator[str]:
    bare = False
    for param in params:
        if param.kind is param.VAR_KEYWORD:
            continue  # no graph was lifted with these
        if param.kind is param.VAR_POSITIONAL:
            bare = True
            yield f"*{param.name}"
            continue
        if param.kind is param.KEYWORD_ONLY and not bare:
            bare = True
            yield "*"
        plain = isinstance(param.default, _PLAIN)
        yield f"{param.name}={param.default!r}" if plain else param.name


def _places(params: list[inspect.Parameter], count: int) -> list[str]:
    """Return what stands for each of ``count`` arguments."""
    found: list[str] = []
    for param in params:
        if param.kind is param.VAR_POSITIONAL:
            found += [f"{param.name}[{i}]" for i in range(count - len(found))]
        elif len(found) < count:
            found.append(param.name)
    return found


def _conditions(params: list[inspect.Parameter], values: list[Any]) -> list[str] | None:
    """Return what must hold of the arguments of one kind; None where it cannot be asked."""
    places, found = _places(params, len(values)), list[str]()
    for place, param in enumerate(params):
        if param.kind is param.VAR_POSITIONAL:
            found.append(f"len({param.name}) == {max(len(values) - place, 0)}")
        elif param.kind is not param.VAR_KEYWORD and param.name not in places:
            if not isinstance(param.default, _PLAIN):
                return None
            found += _condition(param.name, param.default)
    return found + [
        each
        for place, value in zip(places, values, strict=True)
        for each in _condition(place, value)
    ]


def _condition(place: str, value: Any) -> list[str]:
    if isinstance(value, Tensor):
        return [
            f"isinstance({place}, Tensor)",
            f"{place}.shape == {tuple(value.shape)!r}",
            f"{place}.dtype == ms.{_type_of(value)}",
        ]
    if value is None:
        return [f"{place} is None"]
    return [f"isinstance({place}, {type(value).__name__})", f"{place} == {value!r}"]


def _type_of(value: Any) -> str:
    name = dtype_name(value.dtype)
    return "bool_" if name == "bool" else name


class Meets:
    """Lets a network by graph meet a kind of batch before a step with it is compiled."""

    def __init__(self, amp: Any, losses: Iterable[Callable[..., Any]]) -> None:
        """Run these loss functions of ``amp`` for each kind."""
        self._amp, self._losses = amp, tuple(losses)
        self._met: set[Any] = set()

    def __call__(self, batch: Iterable[Any]) -> None:
        """Run the loss functions eagerly where such a batch has not come; nothing is changed."""
        net, batch = self._amp.model, tuple(batch)
        key = (_kind(batch), flags_of(net), frozen_in(net))
        if key in self._met:
            return
        with eagerly(), left_alone(net, self._amp):
            for loss_fn in self._losses:
                loss_fn(*batch)
        self._met.add(key)


def _kind(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape), str(value.dtype)
    if isinstance(value, (tuple, list)):
        return tuple(map(_kind, value))
    if isinstance(value, dict):
        return tuple((name, _kind(item)) for name, item in value.items())
    return value if isinstance(value, _PLAIN) else type(value)
