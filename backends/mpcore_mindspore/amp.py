"""The prepared network that people hold."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mpcore._lib.interrupts import Held
from mpcore.amp.amp import Amp
from mpcore.amp.low_files import tell_of_low_file
from mpcore.errors import BackendError
from mpcore.graph.ir import GraphPlan
from mpcore.step.result import StepResult, StepValues
from mpcore.step.transaction import Latest, StepCall
from mpcore_mindspore import trial
from mpcore_mindspore.bindings import bind, detection_of
from mpcore_mindspore.buffers import guarded_parameters
from mpcore_mindspore.callback import StepCallback
from mpcore_mindspore.casting import FLOATS, cast_network
from mpcore_mindspore.compiled_steps import CompiledSteps
from mpcore_mindspore.graph_compiled import Meets
from mpcore_mindspore.graph_forward import proved
from mpcore_mindspore.graph_rewritten import any_rewritten
from mpcore_mindspore.guard import guarded
from mpcore_mindspore.master_storage import master_values, memory_of, put, values_of, values_to_save
from mpcore_mindspore.other_optimizers import check_unshared
from mpcore_mindspore.recompute import check_recomputed
from mpcore_mindspore.release import Original
from mpcore_mindspore.replanning import ANEW, MadeCells, check_detection, put_plan
from mpcore_mindspore.saving import mark, unmark
from mpcore_mindspore.sources import check_reaches, check_readable
from mpcore_mindspore.step import NO_SCALAR, TrainCell
from mpcore_mindspore.stored_low import Widened, write
from mpcore_mindspore.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    import numpy.typing as npt
    from mindspore import nn

    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore.scaling.transition import LossScaleState
    from mpcore.step.transaction import StepOptions
    from mpcore_mindspore.master_weights import MasterState

__all__ = ["MindsporeAmp"]

_KEPT_CELLS = 16  # steps that `step` keeps, one per loss function and options
_NARROWER = {"int64": np.int32, "float64": np.float32}  # MindSpore's losses want int32 labels


def _tensor(value: object) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        return value
    array = np.asarray(value)
    return Tensor(array.astype(_NARROWER.get(array.dtype.name, array.dtype)))


def _to_numpy(value: object) -> Any:
    return value.asnumpy() if isinstance(value, Tensor) else value


def _first_of(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *batch: loss_fn(*batch)[0]


class MindsporeAmp(Amp):
    """A prepared network.

    Two ways to train, with the same result::

        result = amp.step(loss_fn, x, y)       # a StepResult

        cell = amp.train_cell(loss_fn)         # a Cell for loops, ms.jit, GRAPH_MODE, ms.Model
        loss, stepped, norms, scale, next_scale, dropped = cell(x, y)
        result = amp.result(cell(x, y))        # where the loop wants more than numbers

    Outside a step, run the network in ``with amp.autocast():``. It keeps an exception from
    changing the precision of later Cells, and an emulated dtype rounds the weights there; so
    ``step`` is refused inside it. Numpy batches are converted: int64 to int32, float64 to
    float32. A train cell cannot raise where the rule of the loss scale ends a run; ``step`` does.

    With several optimizers read ``amp.optimizers``; ``amp.optimizer`` is refused. Their own
    Parameters (``global_step``, ``moments.fc1.weight``) get the optimizer's name in front, as in
    any Cell that holds several: a compiled graph wants each name once.

    ``restore_on_skip`` takes Cells, Parameters, and lists and dicts of them. ``after_step`` takes
    functions and Cells without arguments; under ``ms.jit`` their source is compiled.
    """

    def __init__(
        self,
        net: nn.Cell,
        optimizers: Mapping[str, Any],
        plan: Plan,
        native: frozenset[str],
        options: StepOptions,
        *,
        simulated: bool,
    ) -> None:
        """Apply ``plan`` to ``net`` in place; ``native`` dtypes are not emulated."""
        super().__init__(plan, optimizers, simulated=simulated)
        check_unshared(net)
        detection = detection_of(options)
        self._made = MadeCells() if options.on_overflow == "keep full" else None
        if self._made is not None:
            check_detection(detection)
        guarded_parameters(options.restore_on_skip)  # refuse before anything changes
        by_graph, self._graphs = None, list[GraphPlan]()
        if plan.policy.by == "graph":
            by_graph, self._graphs = proved(net, plan.policy, options.example, native)
        self._original = Original(net, self.optimizers.values())
        widened = Widened(net, self.optimizers.values())
        try:
            cast = cast_network(net, plan, native, self._original, by_graph)
            check_recomputed(net, replaced=bool(cast.pairs))
        except BaseException:
            self._original.put_back()
            widened.undo()
            raise
        self.widened = widened.trained
        self._original.amp = self  # lives as long as the network: a second `prepare` finds it
        self._paths = cast.paths
        self._bindings = bind(
            cast, self.optimizers, plan, options, detection, self.guard, self.held
        )
        self._watch = Watch(
            net,
            self._original.shadows,
            self.optimizers.values(),
            self.guard,
            emulates=bool(cast.rounded),
        )
        if self.kept_beside():
            tell = partial(
                tell_of_low_file, self, "`mindspore.save_checkpoint`", hosts=("mindspore",)
            )
            mark(self._master_states().values(), tell)
        self._stepped = False
        self._cells: OrderedDict[Any, TrainCell] = OrderedDict()
        self._compiling = CompiledSteps(self, options.compile)
        self._depth = 0

    @property
    def graphs(self) -> tuple[GraphPlan, ...]:
        """Under by="graph", the plan of every graph so far; empty otherwise."""
        return tuple(self._graphs)

    @property
    def model(self) -> Any:
        """The prepared network."""
        return self._bindings.network

    @property
    def optimizer(self) -> Any:
        """The optimizer, if it is the only one; its Parameters are float32.

        Raises:
            BackendError: there are several.
        """
        return self._only_optimizer()

    @property
    def compiled_steps(self) -> dict[str, str]:
        """What ``prepare(compile=...)`` did with each loss function of ``step``, and why."""
        return dict(self._compiling.said)

    @property
    def masters(self) -> dict[str, Any]:
        """Float32 Parameter of the optimizer by the name of the network's 16-bit one.

        Empty where there are no 16-bit parameters. What it holds are values of this moment: under
        every scheme but ``copy`` it is made for you, and its memory goes with the next step.
        After a change from outside call ``sync_masters``.
        """
        bound = self._bindings.optimizers.values()
        for each in bound:
            each.storage.refresh()
        return {state.low.name: state.master for each in bound for state in each.storage.masters}

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps so far, counted for the noise of stochastic rounding."""
        return int(self._bindings.counter.steps.asnumpy()[0])

    @optimizer_steps.setter
    def optimizer_steps(self, steps: int) -> None:
        ops.assign(self._bindings.counter.steps, Tensor([steps], ms.int32))

    def _floats(self) -> dict[str, Any]:
        """Return each float Parameter of the network by its path."""
        named = {self._paths[id(p)]: p for p in self._bindings.network.get_parameters()}
        return {path: param for path, param in named.items() if param.dtype in FLOATS}

    def _read_weights(self) -> dict[str, npt.NDArray[np.float32]]:
        self._bindings.check_prepared()
        states = self._master_states()
        return {
            path: master_values(states[id(param)]) if id(param) in states else values_of(param)
            for path, param in self._floats().items()
        }

    def _write_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        self._bindings.check_prepared()
        params, states = self._floats(), self._master_states()
        for path, values in weights.items():
            param = params[path]
            if id(param) in states:
                put(states[id(param)], values)
            else:
                write(param, Tensor(values))

    def _master_shapes(self, *, every: bool = False) -> dict[str, tuple[int, ...]]:
        self._bindings.check_prepared()
        states = self._master_states()
        kept = self.policy.scheme.name != "stochastic"
        return {
            path: tuple(param.shape)
            for path, param in self._floats().items()
            if every or (kept and id(param) in states)
        }

    def _read_masters(self) -> dict[str, npt.NDArray[np.float32]]:
        states, params = self._master_states(), self._floats()
        return {path: values_to_save(states[id(params[path])]) for path in self._master_shapes()}

    @property
    def updates(self) -> dict[str, str]:
        """How ``prepare(update=...)`` opens and closes the values of each optimizer, and why."""
        return dict(self._bindings.updates)

    def _master_states(self) -> dict[int, MasterState]:
        each = (state for storage in self._bindings.storages for state in storage.masters)
        return {id(state.low): state for state in each}

    def array_bytes(self) -> dict[str, int]:
        """Return the bytes of what is alive between steps; see ``mpcore.amp.amp.Amp.array_bytes``.

        Once a train cell may be in a graph of your own, the float32 values stay alive for it, and
        count as masters: see ``train_cell``.
        """
        self._bindings.check_prepared()
        storages = self._bindings.storages
        trained = [p for bound in self._bindings.optimizers.values() for p in bound.trained]
        states = [state for storage in storages for state in storage.masters]
        moments = [moment.stored for storage in storages for moment in storage.moments]
        own = [param for storage in storages for param in storage.own]
        beside = [p for state in states for p in (state.master, *state.beside.values())]
        return {
            "parameters": memory_of(self.model.get_parameters()),
            "gradients": memory_of(trained) if self._stepped else 0,
            "masters": memory_of(beside),
            "optimizer": memory_of([*own, *moments]),
        }

    @property
    def state(self) -> LossScaleState:
        """State of the loss scale."""
        return self._bindings.scale.read()

    @state.setter
    def state(self, state: LossScaleState) -> None:
        self._bindings.scale.write(state)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Run the network outside a step, as a step would run it; nests."""
        self._bindings.check_prepared()
        pairs = self._bindings.saved.rounded if self._depth == 0 else []
        for live, saved in pairs:
            ops.assign(saved, live)
            ops.assign(live, saved.astype(ms.bfloat16).astype(ms.float32))
        self._depth += 1
        try:
            with guarded():
                yield
        finally:
            self._depth -= 1
            for live, saved in pairs:
                ops.assign(live, saved)

    @property
    def released(self) -> bool:
        """Whether ``release`` was called."""
        return self._bindings.life.released

    def release(self) -> None:
        """Give the network back as it was before ``prepare``; this object ends with it.

        The original ``construct`` and ``to_float`` flags are put back, weights keep their trained
        float32 values; with by="model" the network gets its float32 Parameters back, with the
        values of the masters. Those that came in 16 bits are float32 where they were trained, and
        as they came where frozen. Outputs are then those of an unprepared network with the same
        weights, bit for bit, and the optimizers can be used natively. A second call does nothing.
        A function of ``ms.jit`` that was compiled before keeps what it was compiled from.

        Raises:
            BackendError: inside ``with amp.autocast()``.
        """
        if self._depth:
            msg = "`release` must not be called inside `with amp.autocast()`: leave it first"
            raise BackendError(msg)
        if self._bindings.life.released:
            return
        self._watch.end()
        unmark(self._master_states().values())
        for storage in self._bindings.storages:
            storage.release()
        self._original.put_back()
        self._bindings.life.released = True
        self._cells.clear()
        self._compiling.clear()

    def sync_masters(self) -> None:
        """Store the optimizers' float32 values, after they were changed from outside a step.

        The network gets them rounded. Moments that are in bfloat16 are stored too.
        """
        self._bindings.check_prepared()
        for bound in self._bindings.optimizers.values():
            bound.storage.sync_masters()

    def _random_state(self) -> Any:
        return ms.get_rng_state()

    def _replayed(self, random: ms.Tensor | None) -> Any:
        return trial.replayed(random)

    def _under(self, policy: Policy) -> Any:
        self._bindings.check_prepared()
        return self._changed(trial.under(self, policy))

    @contextmanager
    def _changed(self, trial: AbstractContextManager[Any]) -> Iterator[Any]:
        with self.guard.opened(), trial as done:
            yield done

    def train_cell(
        self,
        loss_fn: Callable[..., Any] | Mapping[str, Callable[..., Any]],
        clip_norm: float | None = None,
        *,
        keep_grads: bool = False,
        micro_batches: int = 1,
        optimizer: str | Iterable[str] | None = None,
        compiled: bool = False,
        has_aux: bool = False,
    ) -> TrainCell:
        """Return one step as a Cell; all cells of a prepared network share its state.

        Args:
            loss_fn: called as ``loss_fn(*batch)``; runs the network and returns a scalar; or a
                dict of such functions by the optimizer's name. Under ``ms.jit`` and in GRAPH_MODE
                its source is compiled: a function or Cell that lives in a file.
            clip_norm: largest L2 norm of the true gradients, > 0, or None.
            keep_grads: return the true float32 gradients too, as a last item.
            micro_batches: equal parts of the batch, run one after the other, >= 1.
            optimizer: name of the optimizer that moves, or several; None for all.
            compiled: the cell compiles itself, and is called as it is: ``cell(*batch)``, not in
                a graph of your own. Then the memory of float32 values and moments that the
                policy does not keep is taken back after each step. A graph of your own is out of
                our hands: for other train cells that memory stays, from now on.
            has_aux: ``loss_fn`` returns a tuple, the loss first; the rest, a tuple, comes last in
                what the cell returns. Not with ``keep_grads``, several losses or micro-batches,
                nor where lost updates are counted.

        Raises:
            BackendError: an argument is out of its range; the compiler cannot read ``loss_fn``,
                such as a lambda inside a call.
        """
        self._check_trains("train_cell")
        names = self._chosen(optimizer, loss_fn)
        call = StepCall(clip_norm, keep_grads, micro_batches, names)
        taken = keep_grads or micro_batches > 1 or isinstance(loss_fn, dict)
        if has_aux and (taken or self._bindings.counts_lost):
            msg = (
                "`has_aux` must be False beside keep_grads, micro_batches > 1, a dict of losses or "
                "counted lost updates, got True; run the network once more for its outputs"
            )
            raise BackendError(msg)
        cell = self._train_cell(loss_fn, call, compiled=compiled, has_aux=has_aux)
        if not compiled:
            self._bindings.give_memory()
            self._bindings.life.pinned = True
        return cell

    def _train_cell(
        self, loss_fn: Any, call: StepCall, *, compiled: bool = False, has_aux: bool = False
    ) -> TrainCell:
        bindings = self._bindings
        bindings.check_prepared()
        if bindings.drops and call.micro_batches > 1:
            bindings.saved.double_buffers()
        losses = [loss_fn]
        if isinstance(loss_fn, dict):
            losses = [loss_fn[name] for name in call.optimizers]
        check_reaches(losses, self.model)
        if compiled or ms.get_context("mode") == ms.GRAPH_MODE:
            check_readable(losses)
        bound = [bindings.optimizers[name] for name in call.optimizers]
        cell = TrainCell(bindings, bound, losses, call, compiled=compiled, has_aux=has_aux)
        if self._graphs or any_rewritten(self.model):
            cell.meet = Meets(self, losses)
        if self._made is not None:
            first = _first_of(loss_fn) if has_aux else loss_fn
            cell.note = partial(self._note, first, call)
            self._made.add(cell)
        return cell

    def _note(self, loss_fn: Any, call: StepCall, batch: tuple[Any, ...]) -> None:
        step, random = self._steps_done + 1, self._random_state()
        self._latest = Latest(loss_fn, batch, call, random, step)

    def replan(self, policy: Policy) -> str:
        """Run under ``policy`` from now on; see ``Insurable.replan``."""
        self._bindings.check_prepared()
        with Held():
            self.plan = put_plan(self, policy)
            self._cells.clear()
            self._compiling.clear()
            if self._made is not None:
                self._made.compile_anew()
        return ANEW

    def _step(self, loss_fn: Any, batch: tuple[Any, ...], call: StepCall) -> StepResult:
        if self._depth and self._bindings.saved.rounded:
            msg = "`step` must not be called inside `with amp.autocast()`: it rounds by itself"
            raise BackendError(msg)
        self._bindings.check_prepared()
        self._watch.check_constructs()
        cell = self._cell(loss_fn, call)
        try:
            raw = self._compiling.run(cell, loss_fn, call, [_tensor(item) for item in batch])
        except ValueError as error:  # a class of ours cannot be raised where a graph may run
            if str(error) == NO_SCALAR:
                raise BackendError(NO_SCALAR) from error
            raise
        return self._read(raw, call.optimizers)

    def result(
        self, raw: tuple[Any, ...], *, optimizer: str | Iterable[str] | None = None
    ) -> StepResult:
        """Return what a train cell returned as a StepResult; reading it waits for the device.

        Call it once for each step: it is the latest step then, that ``amp.last``,
        ``amp.scheduler`` and the report of a collapse look at.

        Args:
            raw: the tuple; of a cell with ``has_aux`` its first six.
            optimizer: as it was given to ``train_cell``.
        """
        result = self._read(raw, self._chosen(optimizer, None))
        self._done(result)
        return result

    def _read(self, raw: tuple[Any, ...], optimizers: tuple[str, ...]) -> StepResult:
        names = [path for key in optimizers for path in self._bindings.optimizers[key].names]
        self._stepped = True
        tail = list(raw[6:])
        lost = tail.pop() if self._bindings.counts_lost else None
        grads = dict(zip(names, tail[0], strict=True)) if tail else None
        values = StepValues(*raw[:6])._replace(lost=lost)
        return StepResult(values, names, _to_numpy, grads, optimizers)

    def callback(self) -> StepCallback:
        """Return a Callback for ``ms.Model(cell).train(..., callbacks=[...])``.

        It keeps ``amp.last``, and every ``patience`` steps it looks for a collapse, as
        ``amp.step`` does; with a data sink, where MindSpore calls back once an epoch, at the
        end of the epoch.
        """
        return StepCallback(self._follow)

    def _follow(self, raw: tuple[Any, ...], cell: nn.Cell, steps: int) -> None:
        """Count ``steps`` steps of ``cell``, of which ``raw`` is the latest."""
        self._since_look += steps - 1  # `_done` counts one
        self._done(self._read(raw[:6] if cell.has_aux else raw, cell.call.optimizers))

    def gradient(self, function: Callable[..., Any], *inputs: ms.Tensor) -> Any:
        """Return the gradient of ``function(*inputs).sum()`` for ``inputs[0]``, in float32.

        See ``mpcore.amp.amp.Amp.gradient``. In eager mode only: the compiler does not take a second
        derivative inside a train cell (mindspore 2.10.0, CPU: "For Number Type, shape should be
        empty").
        """
        self._bindings.check_prepared()
        # By the rows, as in the mean of a loss: the scale alone is more than float16 holds.
        rows = inputs[0].shape[0] if inputs[0].ndim else 1
        scale = self._bindings.scale.scale.value() / rows

        def scaled(*args: ms.Tensor) -> Any:
            return function(*args).astype(ms.float32).sum() * scale

        return ms.grad(scaled)(*inputs).astype(ms.float32) / scale

    def _cell(self, loss_fn: Any, call: StepCall) -> TrainCell:
        key = (tuple(loss_fn.items()) if isinstance(loss_fn, dict) else loss_fn, call)
        if key not in self._cells:
            self._cells[key] = self._train_cell(loss_fn, call)
            if len(self._cells) > _KEPT_CELLS:
                self._cells.popitem(last=False)
        self._cells.move_to_end(key)
        return self._cells[key]
