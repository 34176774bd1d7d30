"""What a layer of unknown class computes, and the category that this makes it.

A backend calls such a layer once, alone, and tells the operations of that call in neutral words;
the category is decided here, by the table of ops, so that it is the same in every framework.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from mpcore.errors import PolicyError
from mpcore.numerics.ops import op

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

__all__ = [
    "Evidence",
    "Judged",
    "Judgement",
    "Operation",
    "as_one_layer",
    "evidence_of",
    "is_product",
    "judge",
    "setting",
]

_T = TypeVar("_T")

_MOST_KEPT = 64  # shapes and settings of one class that are remembered

_PRODUCTS = ("linear", "conv", "attention", "rnn")
"""Groups of ops that are matrix products or are made of them."""

_REDUCES = ("mean", "var_std", "norm", "sum", "max_min_reduce")
_ROOTS = ("rsqrt", "sqrt", "norm", "var_std", "reciprocal")
_LOOKS_UP = ("lookup", "indexing", "layout", "elementwise", "regularization")
_HARMLESS = ("sum",)
"""Listed as full, but no reason to keep a product from 16 bits: its kernels sum in float32."""


@dataclass(frozen=True)
class Operation:
    """One operation of a layer's call.

    Attributes:
        op: neutral op of ``mpcore.numerics.ops``; ``""`` if the table has none.
        weighs: whether it takes a parameter of the layer, or what was made of parameters alone.
        full: whether the layer's own code runs it in float32 although its parameters and what it
            is given are 16-bit.
    """

    op: str
    weighs: bool = False
    full: bool = False


@dataclass(frozen=True)
class Evidence:
    """One call of a layer, alone.

    Attributes:
        operations: in order; empty if no call succeeded.
        why: why none did; ``""`` if one did.
    """

    operations: tuple[Operation, ...] = ()
    why: str = ""


class Judgement(NamedTuple):
    """What is made of a call.

    Attributes:
        category: one of ``mpcore.policy.layer.CATEGORIES``.
        computes: the neutral ops that decided, in words.
        unknown: why the category does not say what 16-bit products would come of; ``""`` if it
            does.
    """

    category: str
    computes: str = ""
    unknown: str = ""


class Judged:
    """Judgements by class, and by what tells layers of a class apart; equal layers share one."""

    def __init__(self) -> None:
        """Know none; a class that goes takes its own with it."""
        self._known: WeakKeyDictionary[type, dict[Hashable, Judgement]] = WeakKeyDictionary()

    def of(self, cls: type, key: Hashable, evidence: Callable[[], Evidence]) -> Judgement:
        """Return the judgement of such a layer; ``evidence`` calls it, if it is a new one."""
        known = self._known.setdefault(cls, {})
        found = known.get(key)
        if found is None:
            found = judge(evidence())
            if len(known) < _MOST_KEPT:
                known[key] = found
        return found


def evidence_of(
    heard: Iterable[tuple[str, bool, Collection[_T]]], full: _T, *, widens: bool = False
) -> Evidence:
    """Return the operations of a call to which only 16-bit values came.

    Args:
        heard: (neutral op, whether it weighs, dtypes of the floats that it got) of each operation.
        full: float32, as the dtypes say it.
        widens: whether the layer's own code casts to float32: a product may get both then.
    """
    found = []
    for name, weighs, dtypes in heard:
        if len(dtypes) > 1 and is_product(name) and not widens:
            return Evidence(why=f"in 16 bits its {name} would get two dtypes")
        found.append(Operation(name, weighs, full=full in dtypes))
    return Evidence(tuple(found))


def as_one_layer(
    found: Judgement, layers: Collection[str], shapes: Iterable[Sequence[int]]
) -> Judgement:
    """Judge what has parameters of its own and layers inside: a layer with helpers, or not.

    Args:
        found: what its call makes it.
        layers: the categories that it may have.
        shapes: of its parameters; without a matrix nothing is lost if it stays a container.
    """
    if found.unknown:
        matrices = any(sum(n > 1 for n in shape) > 1 for shape in shapes)
        return Judgement("container", unknown=found.unknown if matrices else "")
    return found if found.category in layers else Judgement("container")


def judge(evidence: Evidence) -> Judgement:
    """Return the category of a layer by what it computes.

    A product makes it ``linear``, ``conv``, ``attention`` or the like: lowered. Beside an op that
    the portable op list keeps in float32 (``pow``, ``exp``, a norm) a product leaves the layer
    undecided, since one forward runs in one dtype; a softmax between products is attention, one
    after the last of them a ``softmax`` layer, such as a router of experts. A layer without
    products that neither normalises nor looks up is ``other``: it stays float32, and nothing is
    lost by it.

    Examples:
        >>> judge(Evidence((Operation("linear", weighs=True), Operation("add_sub"))))
        Judgement(category='linear', computes='linear, add_sub', unknown='')
        >>> judge(Evidence((Operation("pow"), Operation("mean"), Operation("rsqrt")))).category
        'norm'
        >>> judge(Evidence(why="no input was found that it takes")).unknown
        'no input was found that it takes'
    """
    if not evidence.operations:
        return Judgement("other", unknown=evidence.why or "its call computes nothing")
    names = dict.fromkeys(o.op for o in evidence.operations if o.op and _group(o.op) != "layout")
    words = ", ".join(list(names)[:6])
    products = [o for o in evidence.operations if is_product(o.op)]
    if not products:
        return Judgement(_without_products(evidence.operations), words)
    if all(o.full for o in products):
        # Whoever wrote it casts to float32 first: rounding the weights before would lose by it.
        return Judgement("other", f"{words} in float32 by its own code")
    wants = dict.fromkeys(o.op for o in evidence.operations if _wants_float32(o))
    if wants:
        listed = ", ".join(wants)
        why = f"it computes {products[0].op} beside {listed}, which want float32"
        return Judgement("other", words, why)
    return Judgement(_of_products(evidence.operations, products), words)


def setting(value: object) -> object:
    """Return what tells a layer's attribute from another; None where it is no plain value.

    Examples:
        >>> setting(3), setting(["a", 2.0]), setting({})
        (3, ('a', 2.0), None)
    """
    if isinstance(value, list | tuple):
        return tuple(setting(item) for item in value)
    plain = isinstance(value, bool | int | float | str | FunctionType | BuiltinFunctionType)
    return value if plain else None


def is_product(name: str) -> bool:
    """Return whether a neutral op is a matrix product or made of them.

    Examples:
        >>> is_product("bmm"), is_product("softmax")
        (True, False)
    """
    return _group(name) in _PRODUCTS


def _group(name: str) -> str:
    return _row(name)[0]


def _row(name: str) -> tuple[str, str]:
    """Return group and portable category of an op; ``""`` where the table has none."""
    if not name:
        return "", ""
    try:
        row = op(name)
        return row.group, row.category
    except PolicyError:  # an op that only its backend knows
        return "", ""


def _wants_float32(operation: Operation) -> bool:
    group, category = _row(operation.op)
    return (
        category == "full"
        and not operation.full
        and group != "normalizing"
        and operation.op not in _HARMLESS
    )


def _of_products(operations: tuple[Operation, ...], products: list[Operation]) -> str:
    last = max(i for i, o in enumerate(operations) if o in products)
    softmaxes = [i for i, o in enumerate(operations) if _group(o.op) == "normalizing"]
    if any(i > last for i in softmaxes):
        return "softmax"
    weighing = [o for o in products if o.weighs]
    if softmaxes or not weighing or any(_group(o.op) == "attention" for o in products):
        return "attention"
    if any(o.op == "conv_transpose" for o in weighing):
        return "conv_transpose"
    if any(_group(o.op) == "conv" for o in weighing):
        return "conv"
    return "recurrent" if any(_group(o.op) == "rnn" for o in weighing) else "linear"


def _without_products(operations: tuple[Operation, ...]) -> str:
    names = {o.op for o in operations}
    groups = {_group(o.op) for o in operations}
    if "norm" in groups or (names & set(_REDUCES) and names & set(_ROOTS)):
        return "norm"
    looks = [o for o in operations if _group(o.op) in ("lookup", "indexing")]
    if any(o.weighs for o in looks) and groups <= set(_LOOKS_UP):
        return "embedding"
    return "other"
