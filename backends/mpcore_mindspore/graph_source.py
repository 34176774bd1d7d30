"""A graph and its plan as MindSpore source: one Cell whose ``construct`` makes every call.

The same text is what runs under by="graph", what ``ms.jit`` compiles, and what
``mp.graph.source`` shows.
"""

from __future__ import annotations

import atexit
import base64
import sys
import tempfile
import zlib
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore.ops.auto_generate import gen_ops_prim
from mindspore.ops.operations.manually_defined import ops_def

from mpcore.errors import GraphError
from mpcore.graph.clip import CLIP
from mpcore_mindspore.graph_lift import Slot
from mpcore_mindspore.graph_primitives import maker_of, signature_of, spelled, type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpcore.graph.ir import Cast, Graph, GraphPlan, Node
    from mpcore_mindspore.graph_lift import Call, Piece

__all__ = ["cell_of", "module_of", "source_of"]

_HEAD = '''"""{title}"""

import base64
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops.auto_generate import gen_ops_prim as prims


def unpacked(text, dtype, shape):
    """Return an array that is too long to be read."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype).reshape(shape)
'''
_PRIMITIVE = '''

def primitive(name, **attributes):
    """Return a primitive with its attributes."""
    made = ops.Primitive(name)
    for key, value in attributes.items():
        made.add_prim_attr(key, value)
    return made
'''
_FORK = '''

class Fork(nn.Cell):
    """One cast with several readers; their gradients are added up in the dtype of its input."""

    def __init__(self, dtype, count):
        super().__init__(auto_prefix=False)
        self.dtype, self.count = dtype, count

    def construct(self, x):
        made = ops.cast(x, self.dtype)
        return tuple([ops.identity(made) for _ in range(self.count)])

    def bprop(self, x, out, dout):
        total = ops.cast(dout[self.count - 1], x.dtype)
        for i in range(self.count - 2, -1, -1):
            total = total + ops.cast(dout[i], x.dtype)
        return (total,)
'''
_CLIP = '''

class ClipGradient(nn.Cell):
    """The identity; the gradient behind it is bounded by a norm, or each element by a size."""

    def __init__(self, norm, value):
        super().__init__(auto_prefix=False)
        self.norm, self.value = norm, value

    def construct(self, x):
        return ops.identity(x)

    def bprop(self, x, out, dout):
        wide = ops.cast(dout, ms.float32)
        if self.norm is None:
            return (ops.cast(ops.clip_by_value(wide, -self.value, self.value), dout.dtype),)
        size = ops.sqrt(ops.reduce_sum(wide * wide))
        factor = ops.minimum(self.norm / size, ops.ones_like(size))
        # A norm that is not finite must stay so: the step is to notice it.
        factor = ops.select(ops.isfinite(size), factor, ops.ones_like(size))
        return (ops.cast(wide * factor, dout.dtype),)
'''
_SHORT = 16  # elements of a constant that are written out
_NUMBER = count()


def source_of(
    piece: Piece,
    graph: Graph | None = None,
    plan: GraphPlan | None = None,
    *,
    title: str = "A network with its casts.",
) -> str:
    """Return the module whose class ``Lowered`` runs a graph; it is made of Parameters by name.

    Args:
        piece: what was lifted.
        graph: the graph to run; the piece's own where it is None.
        plan: where casts lie; None for none.
        title: what the module says of itself.
    """
    return _Writer(piece, graph or piece.graph, plan, title).text()


def cell_of(text: str, params: Mapping[str, Any]) -> Any:
    """Return the Cell that ``source_of`` wrote, over these Parameters."""
    return vars(module_of(text))["Lowered"](params)


def module_of(text: str) -> ModuleType:
    """Return the module of a source.

    MindSpore's compiler reads the source of a Cell from its file, which lies in a folder that
    goes away with the process.
    """
    title = f"mpcore_by_graph_{next(_NUMBER)}"
    file = Path(_folder()) / f"{title}.py"
    file.write_text(text, encoding="utf-8")
    module = ModuleType(title)
    sys.modules[title] = module  # where the compiler looks for the names in a source
    exec(compile(text, str(file), "exec"), vars(module))  # it was written here
    return module


@cache
def _folder() -> str:
    folder = tempfile.TemporaryDirectory(prefix="mpcore_by_graph_")
    atexit.register(folder.cleanup)
    return folder.name


class _Writer:
    def __init__(
        self,
        piece: Piece,
        graph: Graph,
        plan: GraphPlan | None,
        title: str,
    ) -> None:
        self.piece, self.graph, self.plan, self.title = piece, graph, plan, title
        self.made: list[str] = []  # lines of __init__
        self.runs: list[str] = []  # lines of construct
        self.names: dict[str, str] = {}  # value -> Python name
        self.taken: set[str] = {"self", "ms", "np", "nn", "ops", "prims", "primitive", "unpacked"}
        # what makes a primitive, and the path of the Cell that has one of its own -> member
        self.members: dict[tuple[str, str], str] = {}
        self.waiting: dict[tuple[str, str], list[str]] = {}
        self.before: dict[str, list[Cast]] = {}
        self.after: dict[str, list[Cast]] = {}
        self.uses: set[str] = set()
        at = {node.name: i for i, node in enumerate(graph.nodes)}
        for cast in plan.casts if plan is not None else ():
            if cast.place == "after producer":
                self.after.setdefault(cast.value, []).append(cast)
            else:
                first = min(cast.users, key=lambda user: at.get(user, len(at)))
                self.before.setdefault(first, []).append(cast)

    def text(self) -> str:
        inputs = [self._new(name) for name in self.piece.inputs]
        plain = iter(inputs)
        arguments = [
            next(plain) if _is_tensor(x) else self._new(f"argument_{i}")
            for i, x in enumerate(self.piece.arguments.values)
        ]
        for name, member in zip(self.piece.inputs, inputs, strict=True):
            self.names[name] = member
            self._cast_after(name)
        read = {name for node in self.graph.nodes for name in node.inputs} | set(self.graph.outputs)
        for value in self.graph.values:
            if value.name in read and value.kind in ("param", "buffer"):
                self._held(value.name, f"params[{value.name!r}]")
            elif value.name in read and value.kind == "const":
                self._held(value.name, _literal(self.piece.constants[value.name], value.dtype))
        for node in self.graph.nodes:
            for cast in self.before.get(node.name, ()):
                self._cast(cast)
            self._node(node)
        for cast in self.before.get("", ()):
            self._cast(cast)
        outputs = iter(self.graph.outputs)
        self.runs.append(f"return {self._filled(self.piece.result, outputs)}")
        head = _HEAD.format(title=self.title.replace('"', "'"))
        head += _PRIMITIVE if any("primitive(" in line for line in self.made) else ""
        head += _FORK if "Fork" in self.uses else ""
        head += _CLIP if "ClipGradient" in self.uses else ""
        init = ["super().__init__(auto_prefix=False)", *self.made]
        body = [
            "class Lowered(nn.Cell):",
            f'    """{len(self.graph.nodes)} calls of primitives."""',
            "",
            "    def __init__(self, params):",
            *(f"        {line}" for line in init),
            "",
            f"    def construct(self, {', '.join(arguments)}):",
            *(f"        {line}" for line in self.runs),
        ]
        return head + "\n\n" + "\n".join(body) + "\n"

    # --- names ----------------------------------------------------------------------------

    def _new(self, name: str) -> str:
        stem = "".join(c if c.isalnum() and c.isascii() else "_" for c in name).strip("_") or "v"
        stem = f"v{stem}" if stem[0].isdigit() else stem
        made, number = stem, 0
        while made in self.taken:
            number += 1
            made = f"{stem}_{number}"
        self.taken.add(made)
        return made

    def _held(self, name: str, text: str) -> None:
        member = self._new(name)
        self.made.append(f"self.{member} = {text}")
        self.names[name] = f"self.{member}"
        self._cast_after(name)

    def _member(self, text: str, stem: str, *, alone: bool = False, of: str = "") -> str:
        """Return the member that holds a primitive: one for calls that make the same.

        What draws has a generator of its own, and is made ``alone``, or once for a Cell ``of``
        this path: copies of a Cell draw the same.
        """
        if alone or (text, of) not in self.members:
            member = self._new(stem.lower())
            self.members[text, of] = f"self.{member}"
            self.made.append(f"self.{member} = {text}")
        return self.members[text, of]

    # --- casts ----------------------------------------------------------------------------

    def _cast(self, cast: Cast) -> None:
        source, users = self.names[cast.value], len(cast.users)
        made = self._new(f"{_last(cast.value)}_{cast.dtype}")
        why = f"  # {cast.rule}".replace("\n", " ")
        if cast.fork and users > 1:
            self.uses.add("Fork")
            fork = self._member(f"Fork(ms.{cast.dtype}, {users})", "fork")
            self.runs.append(f"{made} = {fork}({source}){why}")
            found = [f"{made}[{i}]" for i in range(users)]
        else:
            self.runs.append(f"{made} = ops.cast({source}, ms.{cast.dtype}){why}")
            found = [made] * users
        for user, text in zip(cast.users, found, strict=True):
            self.waiting.setdefault((user, cast.value), []).append(text)

    def _cast_after(self, name: str) -> None:
        for cast in self.after.get(name, ()):
            made = self._new(f"{_last(name)}_{cast.dtype}")
            self.runs.append(f"{made} = ops.cast({self.names[name]}, ms.{cast.dtype})")
            self.names[name] = made

    def _value(self, user: str, name: str) -> str:
        casts = self.waiting.get((user, name))
        if not casts:
            return self.names[name]
        return casts[0] if user == "" else casts.pop(0)

    # --- calls ----------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        call = self.piece.calls.get(node.name)
        made = self._new(_last(node.name) if not node.path else node.name)
        if call is None:
            self.runs.append(f"{made} = {self._own(node)}")
            self._out(node.outputs[0], made)
            return
        values = self._given(node)
        text = self._called(node, call, values)
        if not node.outputs:
            self.runs.append(text)
            return
        self.runs.append(f"{made} = {text}")
        if "bias" in values and not _has(call.args, "bias"):
            self.runs.append(f"{made} = ops.bias_add({made}, {values['bias']})")
        if call.outputs < 0:
            self._out(node.outputs[0], made)
            return
        for i, name in enumerate(node.outputs):
            self._out(name, f"{made}[{i}]")

    def _given(self, node: Node) -> dict[str, str]:
        found = {}
        for i, (role, name) in enumerate(zip(node.roles, node.inputs, strict=True)):
            kept = i in node.keeps and (node.name, name) not in self.waiting
            found[role] = self.names[name] if kept else self._value(node.name, name)
        return found

    def _out(self, name: str, text: str) -> None:
        self.names[name] = text
        self._cast_after(name)

    def _own(self, node: Node) -> str:
        """Return the call of a node that was put in."""
        if node.target != CLIP:
            msg = f"node {node.name!r} cannot be built: MindSpore has no {node.target!r}"
            raise GraphError(msg)
        self.uses.add("ClipGradient")
        norm, value = node.settings.get("norm"), node.settings.get("value")
        clip = self._member(f"ClipGradient({norm!r}, {value!r})", "clip_gradient")
        return f"{clip}({self._value(node.name, node.inputs[0])})"

    def _called(self, node: Node, call: Call, values: Mapping[str, str]) -> str:
        args = [_written(item, values) for item in call.args]
        if call.name == "Cast":
            return f"ops.cast({args[0]}, ms.{type_name(call.args[1])})"
        if call.name == "Dropout" and len(args) == 4:  # one generator for all calls of one Cell
            own = node.path if node.layer == "Dropout" else ""
            member = self._member(f"ops.Dropout{call.args[1:]!r}", "dropout", of=own)
            return f"{member}({args[0]})"
        draws = node.order >= 0 and not node.state
        cls = getattr(gen_ops_prim, call.name, getattr(ops_def, call.name, None))
        if cls is None or (call.attrs and cls.__module__ != ops_def.__name__):
            member = self._member(maker_of(call), call.name, alone=draws)
            return f"{member}({', '.join(args)})"
        order, made_with = signature_of(cls, len(args))
        named = zip(order, call.args, args, strict=False)
        args = [spelled(cls, n, item, text) for n, item, text in named] + args[len(order) :]
        if len(order) < len(args):
            msg = f"{node.name}: MindSpore's {call.name} cannot be called with {len(args)} inputs"
            raise GraphError(msg)
        init = ", ".join(f"{n}={a}" for n, a in zip(order, args, strict=False) if n in made_with)
        given = ", ".join(a for n, a in zip(order, args, strict=False) if n not in made_with)
        home = "ops" if cls.__module__ == ops_def.__name__ else "prims"
        member = self._member(f"{home}.{call.name}({init})", call.name, alone=draws)
        return f"{member}({given})"

    def _filled(self, result: Any, outputs: Any) -> str:
        if isinstance(result, Slot):
            return self._value("", next(outputs))
        if isinstance(result, tuple):
            inner = ", ".join(self._filled(item, outputs) for item in result)
            return f"({inner},)" if len(result) == 1 else f"({inner})"
        return repr(result)


def _written(item: Any, values: Mapping[str, str]) -> str:
    if isinstance(item, Slot):
        return values[item.role]
    if isinstance(item, tuple):
        inner = ", ".join(_written(x, values) for x in item)
        return f"({inner},)" if len(item) == 1 else f"({inner})"
    return repr(item)


def _has(args: Any, role: str) -> bool:
    if isinstance(args, tuple):
        return any(_has(item, role) for item in args)
    return isinstance(args, Slot) and args.role == role


def _literal(array: Any, dtype: str) -> str:
    held = f"ms.{dtype}" if dtype != "bool" else "ms.bool_"
    if array.size <= _SHORT and array.dtype.kind in "ib":
        return f"Tensor(np.array({array.tolist()!r}, {array.dtype.name!r}), {held})"
    if array.size == 1 and np.isfinite(array).all():
        return f"Tensor(np.array({array.tolist()!r}, {array.dtype.name!r}), {held})"
    text = base64.b64encode(zlib.compress(array.tobytes())).decode()
    return f"Tensor(unpacked({text!r}, {array.dtype.name!r}, {array.shape!r}).copy(), {held})"


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _is_tensor(value: object) -> bool:
    return hasattr(value, "asnumpy")
