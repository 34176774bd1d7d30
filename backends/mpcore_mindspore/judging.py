"""What a layer of unknown class computes: one graph of its construct, alone, in 16 bits.

A copy is called eagerly with inputs that are guessed from its shapes, until a call goes through;
for that input MindSpore's compiler makes the graph of a copy with Parameters in float16, whose
nodes say which ops there are and in which dtypes. Construct code of the user does run, once or
more; what it assigns stays in the copy. Tried with mindspore 2.10.0 on CPU; not run on Ascend.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import math
import os
import tempfile
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import mindspore as ms
from mindspore import Parameter, nn, ops
from mindspore.train.mind_ir_pb2 import ModelProto

from mpcore.policy.evidence import Evidence, Judged, Judgement, evidence_of, setting
from mpcore.policy.guesses import Shapes, guesses
from mpcore.tools.inspection.trace import neutral_op
from mpcore_mindspore.executors import _cell_graph_executor, _pynative_executor
from mpcore_mindspore.guard import guarded, undisturbed
from mpcore_mindspore.kernels import MOVES
from mpcore_mindspore.release import clear_precision, replace_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mpcore.policy.guesses import Given

__all__ = ["judged"]

_MOST_CALLS = 60  # tried for one class
_MOST_GRAPHS = 2
_MOST_VALUES = 2**26  # of all Parameters of a layer that is tried
_NO_INPUT = "no input was found that it takes"
_LOW, _FULL = 10, 1  # MindIR's numbers of float16 and float32
_FLOATS = frozenset((_LOW, _FULL))
_NAMES = {
    # what the table of ops does not spell
    "Sub": "add_sub",
    "Neg": "mul_div",
    "RealDiv": "mul_div",
    "Square": "pow",
    "Select": "where",
}
_QUIET = MOVES | {"Constant", "UpdateState", "MakeTuple", "TupleGetItem", "Return", "AssignAdd"}
_QUIET -= {"Gather", "GatherD"}  # a table that is looked up

_of_cell: WeakKeyDictionary[nn.Cell, Judgement] = WeakKeyDictionary()
_KNOWN = Judged()


def judged(cell: nn.Cell) -> Judgement:
    """Return what the construct of ``cell`` makes it; the same for equal layers of its class."""
    found = _of_cell.get(cell)
    if found is None:
        found = _KNOWN.of(type(cell), _key(cell), lambda: _evidence(cell))
        _of_cell[cell] = found
    return found


def _key(cell: nn.Cell) -> Any:
    """Return what tells layers of a class apart: shapes of Parameters, and settings."""
    shapes = tuple(
        (param.name.rpartition(".")[2], _shape(param)) for param in cell.get_parameters()
    )
    settings = tuple(
        (name, setting(value))
        for inner in (cell, *cell.cells())
        for name, value in vars(inner).items()
        if not name.startswith("_") and name not in _CHANGING
    )
    return shapes, settings


_CHANGING = ("construct", "training", "requires_grad", "param_prefix", "fp16", "bf16", "fp32")


def _shape(param: Any) -> tuple[int, ...]:
    return tuple(param.shape)


def _evidence(cell: nn.Cell) -> Evidence:
    construct = type(cell).construct
    if construct is nn.Cell.construct or "construct" in vars(cell):
        return Evidence(why="it has no construct of its own class")
    params = list(cell.get_parameters())
    if sum(param.size for param in params) > _MOST_VALUES:
        return Evidence(why="it is too large to be tried")
    given = list(inspect.signature(construct).parameters.values())[1:]
    shapes = Shapes.of(map(_shape, params))
    tries = [
        each
        for optional in (False, True)
        for each in itertools.islice(guesses(given, shapes, optional=optional), _MOST_CALLS)
    ]
    try:
        low, wide = _ghost(cell, ms.float16), _ghost(cell, ms.float32)
    except Exception as exc:  # whatever a class of the user raises when copied
        return Evidence(why=f"it cannot be copied ({type(exc).__name__})")
    size = sum(param.size for param in params)
    with _alone():
        best = _best(low, low, ms.float16, tries, size)
        if best.why == _NO_INPUT:  # some kernels are there in float32 alone
            best = _best(wide, low, ms.float32, tries, size)
        return best


def _ghost(cell: nn.Cell, dtype: ms.Type) -> nn.Cell:
    """Return a copy with Parameters of ``dtype``: in 16 bits as while a plan casts them."""
    ghost = copy.deepcopy(cell)
    for _, inner in ghost.cells_and_names():
        clear_precision(inner)
        made = {
            id(param): Parameter(ops.zeros(_shape(param), dtype), param.name)
            for param in inner._params.values()
            if param is not None and param.dtype in (ms.float32, ms.bfloat16, ms.float16)
        }
        replace_parameters(inner, made)
    return ghost


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Try layers eagerly, without a trace in the generator; reports of the compiler are dropped."""
    mode, seed, home = ms.get_context("mode"), ms.get_rng_state(), os.environ.get("MS_OM_PATH")
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.environ["MS_OM_PATH"] = folder
            if mode != ms.PYNATIVE_MODE:
                ms.set_context(mode=ms.PYNATIVE_MODE)
            yield
        finally:
            if mode != ms.PYNATIVE_MODE:
                ms.set_context(mode=mode)
            ms.set_rng_state(seed)
            del os.environ["MS_OM_PATH"]
            if home is not None:
                os.environ["MS_OM_PATH"] = home


def _best(
    eager: nn.Cell, low: nn.Cell, dtype: ms.Type, tries: Iterable[Given], size: int
) -> Evidence:
    """Return the call that used at least half of the Parameters, or the most that were found."""
    best, most, why, graphs = None, 0, _NO_INPUT, 0
    for each in tries:
        try:
            with guarded(), undisturbed():
                eager(*_inputs(each, dtype))
                _pynative_executor.sync()  # what failed is told when it is waited for
        except Exception:  # the input is a guess: it may raise anything
            continue
        graphs += 1
        try:
            heard = _Heard(_graph(low, _inputs(each, ms.float16)))
            if heard.weighed > most:
                best, most = heard, heard.weighed
        except Exception as exc:  # a construct that runs eagerly only
            why = f"MindSpore cannot compile it ({type(exc).__name__})"
        if most * 2 >= size or graphs == _MOST_GRAPHS:
            break
    return Evidence(why=why) if best is None else best.told()


def _inputs(given: Given, dtype: ms.Type) -> list[Any]:
    return [ops.zeros(shape, dtype if kind == "float" else ms.int32) for kind, shape in given]


def _graph(ghost: nn.Cell, inputs: list[Any]) -> Any:
    phase, _ = _cell_graph_executor.compile(ghost, *inputs, phase="mpcore.judging")
    model = ModelProto()
    try:
        model.ParseFromString(_cell_graph_executor._get_func_graph_proto(ghost, phase, "mind_ir"))
    finally:
        _cell_graph_executor.del_net_res(ghost, {phase})
    return model


class _Heard:
    """The nodes of a graph, and which of them take Parameters or what is made of them alone.

    Attributes:
        weighed: how many values of the Parameters were computed with.
    """

    def __init__(self, model: Any) -> None:
        self.operations: list[tuple[str, bool, set[int]]] = []
        self._dtypes: dict[str, int] = {}
        self._sources: dict[str, frozenset[str]] = {}
        self._sizes: dict[str, int] = {}
        self._weighed: set[str] = set()
        for graph in (model.graph, *model.functions):
            for param in graph.parameter:
                self._sizes[param.name] = math.prod(param.dims)
                self._sources[param.name] = frozenset((param.name,))
                self._dtypes[param.name] = param.data_type
            for each in graph.input:
                for tensor in each.tensor:
                    self._dtypes[each.name] = tensor.data_type
            for node in graph.node:
                self._take(node)
        self.weighed = sum(self._sizes[name] for name in self._weighed)

    def _take(self, node: Any) -> None:
        name = node.op_type.removeprefix("REF::").rpartition(":")[0] or node.op_type
        came = [dtype for x in node.input if (dtype := self._dtypes.get(x)) in _FLOATS]
        sources = [self._sources[x] for x in node.input if x in self._sources]
        values = [x for x in node.input if x in self._dtypes]
        for attribute in node.attribute:
            if attribute.name == "shape":
                for tensor in attribute.tensors:
                    self._dtypes[node.output[0]] = tensor.data_type
        if sources and len(sources) == len(values):
            self._sources[node.output[0]] = frozenset().union(*sources)
        if name in _QUIET or not came:
            return
        self._weighed.update(*sources)
        neutral = neutral_op("mindspore", name) or _NAMES.get(name, "")
        self.operations.append((neutral, bool(sources), {x for x in came if x is not None}))

    def told(self) -> Evidence:
        """Return the operations, with what stays float32 although all that came in is 16-bit."""
        return evidence_of(self.operations, _FULL)
