"""Neutral ops, and what each mixed-precision system does with them: a table, read when asked."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from mpcore.errors import PolicyError, check_choice
from mpcore.numerics.op_table import Op, System, output_of, read_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "Comparison",
    "Difference",
    "Op",
    "OpClass",
    "PortableOp",
    "System",
    "classify",
    "differences",
    "find",
    "frameworks",
    "lists",
    "match",
    "meaning",
    "names",
    "of_aten",
    "op",
    "ops",
    "outcome",
    "portable",
    "portable_like",
    "system",
    "systems",
]


@dataclass(frozen=True)
class OpClass:
    """What one system does with one op.

    Attributes:
        category: ``lower``, ``full``, ``promote``, ``follow``, ``banned``, ``infer``, ``mixed`` or
            ``absent``; ``meaning`` explains each.
        output: what comes out: one of the same words, or ``"none"``.
        listed: whether a list names it; otherwise it falls to the system's default.
        names: the system's own names that decided; not listed ones where ``listed`` is False.
        others: its own names that no list names, where another name decided.
        source: the file and version that the list was read from.
    """

    category: str
    output: str
    listed: bool
    names: tuple[str, ...]
    others: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Difference:
    """One op that two systems treat differently."""

    op: str
    a: OpClass
    b: OpClass


@dataclass(frozen=True)
class Comparison:
    """Two systems, op by op; iterates over its differences.

    Attributes:
        system_a: name of the one.
        system_b: name of the other.
        rows: the ops that differ, in the order of the table.
        compared: number of ops that both systems have.
    """

    system_a: str
    system_b: str
    rows: tuple[Difference, ...]
    compared: int

    def __iter__(self) -> Iterator[Difference]:
        """Yield the differences."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Return the number of differences."""
        return len(self.rows)

    def __str__(self) -> str:
        """Return one sentence, for a report."""
        return (
            f"{self.system_a} differs from {self.system_b} "
            f"in {len(self.rows)} of {self.compared} rows"
        )


@dataclass(frozen=True)
class PortableOp:
    """What the portable list does with one op, on every device and in every framework.

    Attributes:
        op: neutral name.
        category: ``lower``, ``full``, ``promote`` or ``follow``; it says what comes out too.
        unlike: systems with an op list of their own that natively do otherwise.
        note: why it is an exception to the rule; ``""`` where it is none.
    """

    op: str
    category: str
    unlike: tuple[str, ...]
    note: str = ""


def ops() -> tuple[Op, ...]:
    """Return every neutral op, in the order of the table.

    Examples:
        >>> len(ops()), [row.name for row in ops()][:3]
        (105, ['matmul', 'linear', 'bmm'])
    """
    return tuple(read_table().ops.values())


def op(name: str) -> Op:
    """Return the neutral op called ``name``.

    Raises:
        PolicyError: there is none; the message gives the nearest one.

    Examples:
        >>> op("softmax").category, op("layer_norm").output
        ('full', 'lower')
    """
    known = read_table().ops
    if not isinstance(name, str) or name not in known:
        rule = "`op` must be a neutral op name (docs/reference/ops.md lists them)"
        raise _unknown(rule, name, known)
    return known[name]


def _unknown(rule: str, value: object, known: Iterable[str]) -> PolicyError:
    near = difflib.get_close_matches(str(value), list(known), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return PolicyError(f"{rule}, got {value!r}{hint}")


@cache
def match(pattern: str) -> tuple[Op, ...]:
    """Return the ops that ``pattern`` means, as in a rule with target op.

    Args:
        pattern: the name of an op, which means that op alone; else names and groups match it
            as a whole, with the wildcards ``*``, ``?`` and ``[...]``.

    Raises:
        PolicyError: it matches none; the message gives the nearest name or group.

    Examples:
        >>> [row.name for row in match("cum*")]
        ['cumsum', 'cumprod']
    """
    if pattern in read_table().ops:
        return (read_table().ops[pattern],)
    found = tuple(
        row for row in ops() if any(fnmatchcase(text, pattern) for text in (row.name, row.group))
    )
    if not found:
        known = dict.fromkeys(text for row in ops() for text in (row.name, row.group))
        rule = "`op` must match a neutral op or group (docs/reference/ops.md lists them)"
        raise _unknown(rule, pattern, known)
    return found


def systems() -> tuple[str, ...]:
    """Return the names of the systems in the table."""
    return tuple(read_table().systems)


def system(name: str) -> System:
    """Return what is known of one system.

    Raises:
        PolicyError: the table has none of that name.

    Examples:
        >>> system("mindspore_O1").default, system("torch_cpu").mechanism
        ('full', 'op')
    """
    return read_table().systems[check_choice("system", name, systems())]


def lists(name: str) -> Mapping[str, tuple[str, ...]]:
    """Return one system's own lists, by ``category[/output][:remark]``.

    ``"full/lower"`` is computed in float32 and handed on in the low dtype. The remarks are
    torch's: ``"set_dtype"`` sets the op's dtype argument to float32 unless the caller gave one,
    ``"append_dtype"`` calls the overload that takes one.

    Examples:
        >>> sorted(lists("mindspore_O2")["full/lower"])
        ['nn.BatchNorm1d', 'nn.BatchNorm2d', 'nn.BatchNorm3d', 'nn.LayerNorm']
    """
    return read_table().lists[check_choice("system", name, systems())]


def meaning(word: str) -> str:
    """Return what a category means, in words.

    Examples:
        >>> meaning("full")
        'computed in float32'
    """
    known = read_table().categories
    return known[check_choice("category", word, known)]


def classify(op_: Op | str, system_: str, name: str | None = None) -> OpClass:
    """Return what a system does with an op.

    Args:
        op_: an op, or its neutral name.
        system_: one of ``systems()``.
        name: one of the system's own names of this op, where these differ among themselves:
            torch's CPU list has ``max_pool3d`` and not ``max_pool2d``.

    Raises:
        PolicyError: an unknown op, system or name.

    Examples:
        >>> classify("softmax", "torch_cuda").category, classify("softmax", "torch_cpu").category
        ('full', 'follow')
        >>> classify("linear", "mindspore_O1").output
        'full'
        >>> classify("max_pool", "torch_cpu", "max_pool2d").category
        'follow'
    """
    row = op(op_) if isinstance(op_, str) else op_
    where = system(system_)
    own = _own_names(row, where)
    if name is not None:
        own = (check_choice("name", name.removeprefix("aten::"), own),)
    if not own:
        return OpClass("absent", "none", listed=False, names=(), others=(), source=where.source)
    table = read_table().listed[where.name]
    hits = {known: table[known] for known in own if known in table}
    category, output = _one(set(hits.values())) if hits else _default(where)
    return OpClass(
        category,
        row.comes_out.get(where.name, output),
        listed=bool(hits),
        names=tuple(hits) or own,
        others=tuple(known for known in own if hits and known not in hits),
        source=where.source,
    )


def _default(where: System) -> tuple[str, str]:
    category, _, output = where.default.partition("/")
    return category, output or output_of(category)


def _one(classes: set[tuple[str, str]]) -> tuple[str, str]:
    """Return what all names agree on, else ``"mixed"``."""
    categories = {category for category, _ in classes}
    outputs = {output for _, output in classes}
    return (
        categories.pop() if len(categories) == 1 else "mixed",
        outputs.pop() if len(outputs) == 1 else "mixed",
    )


def _own_names(row: Op, where: System) -> tuple[str, ...]:
    spelled = (*row.names.get(where.framework, ()), *row.also.get(where.framework, ()))
    if where.vocabulary:
        spelled = tuple(name for name in spelled if name.startswith(where.vocabulary))
    return tuple(dict.fromkeys(name.removeprefix("aten::") for name in spelled))


@cache
def portable() -> Mapping[str, PortableOp]:
    """Return the portable list: one decision an op, the same on every device; by neutral name.

    The rule: what torch's list for CUDA does, and where that names no op what comes out there.
    Ascend's and MindSpore auto's lists agree in most rows. The exceptions are ops that CUDA
    refuses in 16 bits or with two dtypes: there it goes on refusing them.

    Examples:
        >>> portable()["softmax"].category, portable()["softmax"].unlike
        ('full', ('torch_cpu',))
        >>> portable()["bce"].note
        'torch bans it on CUDA and Ascend, where it raises; use it with logits'
    """
    data = read_table().portable
    found = {}
    for row in ops():
        category, note = data["exceptions"].get(row.name, ("", ""))
        category = category or outcome(row, data["like"])
        category = "follow" if category == "absent" else category
        unlike = tuple(
            name for name in data["lists"] if outcome(row, name) not in (category, "absent")
        )
        found[row.name] = PortableOp(row.name, category, unlike, note)
    return MappingProxyType(found)


def portable_like() -> str:
    """Return the system whose list the portable one is, but for its exceptions."""
    return str(read_table().portable["like"])


def outcome(op_: Op | str, system_: str, name: str | None = None) -> str:
    """Return in one word what a system makes of an op, listed or made of listed ones.

    Examples:
        >>> classify("square", "torch_cuda").category, outcome("square", "torch_cuda")
        ('follow', 'full')
    """
    found = classify(op_, system_, name)
    made_of = found.category == "follow" and not found.listed and found.output != "follow"
    return found.output if made_of else found.category


def frameworks() -> tuple[str, ...]:
    """Return the frameworks whose names ``find`` knows."""
    return tuple(read_table().found)


def names(op_: Op | str, framework: str) -> tuple[str, ...]:
    """Return a framework's names of an op: layers, functions, ops; ``find`` takes each back.

    Args:
        op_: an op, or its neutral name.
        framework: ``"torch"``, ``"keras"``, ``"mindspore"``, ``"tf"`` (graph op types), or
            ``"paddle"``, ``"apex"``, ``"mxnet"``, ``"onnx"``.

    Examples:
        >>> names("tanh", "torch")
        ('nn.Tanh', 'F.tanh', 'torch.tanh', 'Tensor.tanh', 'aten::tanh')
    """
    row = op(op_) if isinstance(op_, str) else op_
    return row.names.get(check_choice("framework", framework, frameworks()), ())


_CANONICAL: Mapping[str, tuple[tuple[str, str], ...]] = {
    # framework: (pattern of the beginning, what the table writes); the first that fits is used
    "torch": (
        (r"(torch\.ops\.)?aten\.", "aten::"),
        (r"(torch\.)?(nn\.)?functional\.", "F."),
        (r"torch\.nn\.(quantized\.)?modules\.\w+\.", "nn."),
        (r"torch\.nn\.", "nn."),
        (r"torch\.Tensor\.", "Tensor."),
    ),
    "keras": (
        (r"((tf|tensorflow)\.)?keras\.src\.(layers|losses|metrics|ops)\.(\w+\.)+", r"\3."),
        (r"((tf|tensorflow)\.)?keras\.", ""),
    ),
    "mindspore": (
        (r"(mindspore|ms)\.mint\.nn\.layer\.(\w+\.)+", "mint.nn."),
        (r"(mindspore|ms)\.nn\.layer\.(\w+\.)+", "nn."),
        (r"((mindspore|ms)\.)?ops\.function\.(\w+\.)+", "ops."),
        (r"((mindspore|ms)\.)?ops\.(\w+\.)*(?=[A-Z_])", "P."),
        (r"(mindspore|ms)\.", ""),
    ),
    "tf": ((r"((tf|tensorflow)\.)?raw_ops\.", ""),),
}


def find(framework: str, name: str) -> Op:
    """Return the neutral op behind a framework's layer, function or op name.

    Full, usual and bare names are understood. A bare name that stands for several ops is the
    one of the first row.

    Args:
        framework: one of ``frameworks()``.
        name: such as ``"torch.nn.Softmax"``, ``"F.softmax"``, ``"aten::softmax.int"``,
            ``"keras.layers.Dense"``, ``"ops.softmax"`` or ``"P.Softmax"``.

    Raises:
        PolicyError: an unknown framework, or a name that is in no row (with the nearest).

    Examples:
        >>> find("torch", "torch.nn.functional.softmax").name, find("keras", "Dense").name
        ('softmax', 'linear')
        >>> find("mindspore", "mindspore.ops.operations.MatMul").name
        'matmul'
    """
    known = read_table().found[check_choice("framework", framework, frameworks())]
    spelled = _canonical(framework, str(name))
    if spelled not in known and spelled.startswith("aten::"):
        spelled = spelled.partition(".")[0]  # another overload of a known op
    if spelled not in known:
        rule = f"`name` must be a name of {framework} that the table knows"
        raise _unknown(rule, name, known)
    return known[spelled]


@cache
def of_aten(target: str) -> str:
    """Return the neutral op of an ATen function; its bare name where the table has none.

    What writes into its first argument is the op that it would be without.

    Examples:
        >>> of_aten("aten::linear.default"), of_aten("aten::add_.Tensor"), of_aten("aten::view")
        ('linear', 'add_sub', 'reshape_transpose')
    """
    bare = target.removeprefix("aten::").partition(".")[0]
    plain = bare[:-1] if bare.endswith("_") and not bare.endswith("__") else bare
    row = _by_aten().get(plain)
    return plain if row is None else row


@cache
def _by_aten() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for row in ops():
        spelled = [name for name in row.names.get("torch", ()) if name.startswith("aten::")]
        for name in (*(n.removeprefix("aten::").partition(".")[0] for n in spelled), *row.aten):
            found.setdefault(name, row.name)
    return found


def _canonical(framework: str, name: str) -> str:
    for pattern, written in _CANONICAL.get(framework, ()):
        changed, count = re.subn(rf"^{pattern}", written, name)
        if count:
            return changed
    return name


def differences(system_a: str, system_b: str, by: str = "category") -> Comparison:
    """Return the ops that two systems treat differently, among those that both have.

    Args:
        system_a: one of ``systems()``.
        system_b: another one.
        by: ``"category"`` compares what the ops run in, ``"output"`` what comes out.

    Examples:
        >>> print(differences("torch_cpu", "torch_cuda"))
        torch_cpu differs from torch_cuda in 49 of 101 rows
    """
    check_choice("by", by, ("category", "output"))
    pairs = [
        Difference(row.name, classify(row, system_a), classify(row, system_b)) for row in ops()
    ]
    both = [pair for pair in pairs if "absent" not in (pair.a.category, pair.b.category)]
    rows = tuple(pair for pair in both if getattr(pair.a, by) != getattr(pair.b, by))
    return Comparison(system_a, system_b, rows, len(both))
