"""The prepared network that people hold."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from mpcore.amp.amp import Amp
from mpcore.errors import BackendError
from mpcore.numerics.overflow import find_detector
from mpcore.scaling.transition import LossScaleState, initial_state
from mpcore.step.result import StepResult, StepValues
from mpcore.step.stagnation import measures
from mpcore.step.transaction import StepCall
from mpcore_mindspore import trial
from mpcore_mindspore.ascend import EmulatedAscend, top_of
from mpcore_mindspore.bindings import Mover, Parts
from mpcore_mindspore.buffers import buffers, copies, guarded_parameters
from mpcore_mindspore.callback import StepCallback
from mpcore_mindspore.casting import (
    FLOATS,
    apply_plan,
    compute_dtypes,
    simulated_parameters,
    store_low,
)
from mpcore_mindspore.guard import guarded
from mpcore_mindspore.layers import parameter_paths
from mpcore_mindspore.master_storage import Storage, memory_of, put, truth_of, values_of
from mpcore_mindspore.overflow import Agreed, StatusRegister, Values, rank_sum
from mpcore_mindspore.release import Original
from mpcore_mindspore.step import TrainCell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy.typing as npt

    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore.step.transaction import StepOptions

__all__ = ["MindsporeAmp"]

_KEPT_CELLS = 16  # steps that `step` keeps, one per loss function and options
_NARROWER = {"int64": np.int32, "float64": np.float32}  # MindSpore's losses want int32 labels


def _detector(options: StepOptions, device: EmulatedAscend | None) -> Any:
    kinds: dict[str, Any] = {"values": Values()}
    if device is not None:
        kinds["status_register"] = device.detector
    elif ms.get_context("device_target") == "Ascend":
        kinds["status_register"] = StatusRegister()
    auto = "status_register" if "status_register" in kinds else "values"
    return find_detector(options.detector, kinds, auto)


def _rename(optimizers: Mapping[str, Any]) -> None:
    """Give each optimizer's own Parameters a prefix: in one graph names must differ."""
    for name, optimizer in optimizers.items():
        trained = {id(param) for param in optimizer.parameters}
        rates = [group.get("lr") for group in getattr(optimizer, "param_groups", [])]
        own = [*optimizer.get_parameters(), *rates]
        for param in {id(p): p for p in own if isinstance(p, Parameter)}.values():
            if id(param) not in trained:
                param.name = f"{name}.{param.name}"


def _state_parameters(state: LossScaleState) -> tuple[Any, Any]:
    scale, counts = _state_tensors(state)
    return (
        Parameter(scale, name="mpcore.scale", requires_grad=False),
        Parameter(counts, name="mpcore.counts", requires_grad=False),
    )


def _state_tensors(state: LossScaleState) -> tuple[Any, Any]:
    # One vector for all counts: one read and one assignment a step.
    return Tensor(state.scale, ms.float32), Tensor([int(n) for n in state[1:]], ms.int32)


def _tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        return value
    array = np.asarray(value)
    return Tensor(array.astype(_NARROWER.get(array.dtype.name, array.dtype)))


def _to_numpy(value: Any) -> Any:
    return value.asnumpy() if isinstance(value, Tensor) else value


class MindsporeAmp(Amp):
    """A prepared network.

    Two ways to train, with the same result::

        result = amp.step(loss_fn, x, y)       # a StepResult

        cell = amp.train_cell(loss_fn)         # a Cell for loops, ms.jit, GRAPH_MODE, ms.Model
        loss, stepped, norms, scale, next_scale, dropped = cell(x, y)
        result = amp.result(cell(x, y))        # where the loop wants more than numbers

    Outside a step, run the network in ``with amp.autocast():``. It keeps an exception from
    changing the precision of later Cells, and a simulated dtype rounds the weights there; so
    ``step`` is refused inside it. Numpy batches are converted: int64 to int32, float64 to
    float32. A train cell cannot raise where the rule of the loss scale ends a run; ``step`` does.

    With several optimizers read ``amp.optimizers``; ``amp.optimizer`` is refused. Their own
    Parameters (``global_step``, ``moments.fc1.weight``) get the optimizer's name in front, as in
    any Cell that holds several: a compiled graph wants each name once.

    ``guard`` takes Cells, Parameters, and lists and dicts of them. ``after_step`` takes functions
    and Cells without arguments; under ``ms.jit`` their source is compiled.
    """

    def __init__(
        self,
        net: Any,
        optimizers: Mapping[str, Any],
        plan: Plan,
        native: frozenset[str],
        options: StepOptions,
        *,
        simulated: bool,
    ) -> None:
        """Apply ``plan`` to ``net`` in place; ``native`` dtypes are not simulated."""
        super().__init__(plan, optimizers, simulated=simulated)
        device = EmulatedAscend.active()
        detector = _detector(options, device)
        guarded_parameters(options.restore_on_skip)  # refuse before anything changes
        add = rank_sum() if options.sync_overflow else None
        if add is not None:
            detector = Agreed(detector, add)
        paths = parameter_paths(net)
        self._original = original = Original(net, self.optimizers.values())
        try:
            apply_plan(net, plan, native, original)
            pairs = store_low(net, plan, native, original) if plan.policy.by == "model" else []
        except BaseException:
            original.put_back()
            raise
        rounded = simulated_parameters(net, plan, native)
        formats = compute_dtypes(net, plan)
        if device is not None:
            device.surround(net, plan)
        low_of = {id(truth): low for low, truth in pairs}
        rounding = {id(param) for param in rounded}

        def mover(name: str, optimizer: Any) -> Mover:
            params = tuple(optimizer.parameters)
            trained = tuple(low_of.get(id(param), param) for param in params)
            both = list(zip(trained, params, strict=True))
            return Mover(
                optimizer=optimizer,
                names=tuple(paths[id(param)] for param in params),
                trained=trained,
                storage=Storage(
                    [(low, param) for low, param in both if low is not param],
                    optimizer,
                    plan.policy,
                    name,
                ),
                rounds_grad=tuple(
                    id(low) in rounding or (low is not param and low.dtype == ms.float32)
                    for low, param in both
                ),
                tops=tuple(top_of(formats[id(low)]) for low in trained),
            )

        if len(self.optimizers) > 1:
            _rename(self.optimizers)
        movers = {name: mover(name, optimizer) for name, optimizer in self.optimizers.items()}
        trained = {id(param) for m in movers.values() for param in m.trained}
        frozen = [pair for pair in pairs if id(pair[0]) not in trained]
        # What an optimizer moves stays where it is on a skip; under skip_scope="optimizer" the
        # others have moved by then.
        moved = {id(p) for m in movers.values() for p in (*m.trained, *m.optimizer.parameters)}
        kept = [*buffers(net), *guarded_parameters(options.restore_on_skip)]
        kept = [param for param in kept if id(param) not in moved]
        self._parts = Parts(
            rule=plan.policy.scaling,
            network=net,
            movers=movers,
            state=_state_parameters(initial_state(plan.policy.scaling)),
            buffers=copies(kept, "mpcore_saved"),
            window_buffers=[],
            rounded=copies(rounded, "mpcore_saved"),
            after_step=options.after_step,
            drops=options.on_bad_micro_batch == "drop",
            detector=detector,
            begun=Parameter(Tensor(0.0, ms.float32), name="mpcore.begun", requires_grad=False),
            rank_sum=add,
            device=device,
            frozen=Storage(frozen, None, plan.policy, "frozen"),
            steps=Parameter(Tensor([0], ms.int32), name="mpcore.steps", requires_grad=False),
            counts=plan.policy.scheme.name == "stochastic",
            measures=measures(plan.policy, options.count_lost_updates),
            pinned=[],
            released=[],
        )
        self._paths = paths | {id(low): paths[id(truth)] for low, truth in pairs}
        self._stepped = False
        for storage in self._parts.storages:
            storage.take()
        self._cells: OrderedDict[Any, TrainCell] = OrderedDict()
        self._depth = 0

    @property
    def model(self) -> Any:
        """The prepared network."""
        return self._parts.network

    @property
    def optimizer(self) -> Any:
        """The optimizer, if it is the only one; its Parameters are float32.

        Raises:
            BackendError: there are several.
        """
        if len(self.optimizers) > 1:
            names = ", ".join(repr(name) for name in self.optimizers)
            msg = f"`optimizer` must be the only one, there are {names}; read `optimizers[name]`"
            raise BackendError(msg)
        return next(iter(self.optimizers.values()))

    @property
    def masters(self) -> dict[str, Any]:
        """Float32 Parameter of the optimizer by the name of the network's 16-bit one.

        Empty where there are no 16-bit parameters. What it holds is the truth of this moment: under
        every scheme but ``copy`` it is made for you, and its memory goes with the next step.
        After a change from outside call ``sync_masters``.
        """
        for mover in self._parts.movers.values():
            mover.storage.refresh()
        held = [held for mover in self._parts.movers.values() for held in mover.storage.held]
        return {each.low.name: each.truth for each in held}

    @property
    def optimizer_steps(self) -> int:
        """Real steps so far, counted for the noise of stochastic rounding."""
        return int(self._parts.steps.asnumpy()[0])

    @optimizer_steps.setter
    def optimizer_steps(self, steps: int) -> None:
        ops.assign(self._parts.steps, Tensor([steps], ms.int32))

    def _floats(self) -> dict[str, Any]:
        """Return each float Parameter of the network by its path."""
        named = {self._paths[id(p)]: p for p in self._parts.network.get_parameters()}
        return {path: param for path, param in named.items() if param.dtype in FLOATS}

    def _read_weights(self) -> dict[str, npt.NDArray[np.float32]]:
        self._parts.check_held()
        return {
            path: truth_of(self._held[id(param)]) if id(param) in self._held else values_of(param)
            for path, param in self._floats().items()
        }

    def _write_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        self._parts.check_held()
        params = self._floats()
        for path, values in weights.items():
            param = params[path]
            if id(param) in self._held:
                put(self._held[id(param)], values)
            else:
                ops.assign(param, Tensor(values).astype(param.dtype))

    @property
    def _held(self) -> dict[int, Any]:
        return {id(held.low): held for storage in self._parts.storages for held in storage.held}

    def array_bytes(self) -> dict[str, int]:
        """Return the bytes of what is alive between steps; see ``mpcore.amp.amp.Amp.array_bytes``.

        Once a train cell may be in a graph of your own, the float32 values stay alive for it, and
        count as masters: see ``train_cell``.
        """
        parts = self._parts
        parts.check_held()
        trained = [param for mover in parts.movers.values() for param in mover.trained]
        held = [held for storage in parts.storages for held in storage.held]
        states = [state.kept for storage in parts.storages for state in storage.states]
        own = [param for storage in parts.storages for param in storage.own]
        beside = [*(each.truth for each in held), *(p for h in held for p in h.kept.values())]
        return {
            "parameters": memory_of(parts.network.get_parameters()),
            "gradients": memory_of(trained) if self._stepped else 0,
            "masters": memory_of(beside),
            "optimizer": memory_of([*own, *states]),
        }

    @property
    def state(self) -> LossScaleState:
        """State of the loss scale."""
        scale, counts = (param.asnumpy() for param in self._parts.state)
        return LossScaleState(float(scale), *counts.tolist())

    @state.setter
    def state(self, state: LossScaleState) -> None:
        for param, value in zip(self._parts.state, _state_tensors(state), strict=True):
            ops.assign(param, value)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Run the network outside a step, as a step would run it; nests."""
        self._parts.check_held()
        pairs = self._parts.rounded if self._depth == 0 else []
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

    def release(self) -> None:
        """Give the network back as it was before ``prepare``; this object ends with it.

        The original ``construct`` and ``to_float`` flags are put back, weights keep their trained
        float32 values; with by="model" the network gets its float32 Parameters back, with the
        values of the masters. Outputs are then those of an unprepared network with the same
        weights, bit for bit, and the optimizers can be used natively. A second call does nothing.
        A function of ``ms.jit`` that was compiled before keeps what it was compiled from.

        Raises:
            BackendError: inside ``with amp.autocast()``.
        """
        if self._depth:
            msg = "`release` must not be called inside `with amp.autocast()`: leave it first"
            raise BackendError(msg)
        if self._parts.released:
            return
        for storage in self._parts.storages:
            storage.release()
        self._original.put_back()
        self._parts.released.append(True)
        self._cells.clear()

    def sync_masters(self) -> None:
        """Store the optimizers' float32 values, after they were changed from outside a step.

        The network gets them rounded. Moments that are kept in bfloat16 are stored too.
        """
        self._parts.check_held()
        for mover in self._parts.movers.values():
            mover.storage.sync_masters()

    def _random_state(self) -> Any:
        return ms.get_rng_state()

    def _replayed(self, random: Any) -> Any:
        return trial.replayed(random)

    def _under(self, policy: Policy) -> Any:
        self._parts.check_held()
        return trial.under(self, policy)

    def train_cell(
        self,
        loss_fn: Callable[..., Any] | Mapping[str, Callable[..., Any]],
        clip_norm: float | None = None,
        *,
        keep_grads: bool = False,
        micro_batches: int = 1,
        optimizer: str | Iterable[str] | None = None,
        compiled: bool = False,
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

        Raises:
            BackendError: an argument is out of its range.
        """
        names = self._chosen(optimizer, loss_fn)
        call = StepCall(clip_norm, keep_grads, micro_batches, names)
        cell = self._train_cell(loss_fn, call, compiled=compiled)
        if not compiled:
            self._parts.give()
            self._parts.pinned.append(True)
        return cell

    def _train_cell(self, loss_fn: Any, call: StepCall, *, compiled: bool = False) -> TrainCell:
        parts = self._parts
        parts.check_held()
        if parts.drops and call.micro_batches > 1 and not parts.window_buffers:
            parts.window_buffers += copies((live for live, _ in parts.buffers), "mpcore_window")
        losses = [loss_fn]
        if isinstance(loss_fn, dict):
            losses = [loss_fn[name] for name in call.optimizers]
        movers = [parts.movers[name] for name in call.optimizers]
        return TrainCell(parts, movers, losses, call, compiled=compiled)

    def _step(self, loss_fn: Any, batch: tuple[Any, ...], call: StepCall) -> StepResult:
        if self._depth and self._parts.rounded:
            msg = "`step` must not be called inside `with amp.autocast()`: it rounds by itself"
            raise BackendError(msg)
        raw = self._cell(loss_fn, call)(*[_tensor(item) for item in batch])
        return self._read(raw, call.optimizers)

    def result(
        self, raw: tuple[Any, ...], *, optimizer: str | Iterable[str] | None = None
    ) -> StepResult:
        """Return what a train cell returned as a StepResult; reading it waits for the device.

        Call it once for each step: it is the latest step then, that ``amp.last``,
        ``amp.scheduler`` and the report of a collapse look at.

        Args:
            raw: the tuple.
            optimizer: as it was given to ``train_cell``.
        """
        result = self._read(raw, self._chosen(optimizer, None))
        self._done(result)
        return result

    def _read(self, raw: tuple[Any, ...], optimizers: tuple[str, ...]) -> StepResult:
        names = [path for key in optimizers for path in self._parts.movers[key].names]
        self._stepped = True
        tail = list(raw[6:])
        lost = tail.pop() if self._parts.measures else None
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

    def _follow(self, raw: tuple[Any, ...], cell: Any, steps: int) -> None:
        """Count ``steps`` steps of ``cell``, of which ``raw`` is the latest."""
        self._since_look += steps - 1  # `_done` counts one
        self._done(self._read(raw, cell.call.optimizers))

    def gradient(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Return the gradient of ``function(*inputs).sum()`` for ``inputs[0]``, in float32.

        See ``mpcore.amp.amp.Amp.gradient``. In eager mode only: the compiler does not take a second
        derivative inside a train cell (mindspore 2.10.0, CPU: "For Number Type, shape should be
        empty").
        """
        self._parts.check_held()
        # By the rows, as in the mean of a loss: the scale alone is more than float16 holds.
        rows = inputs[0].shape[0] if inputs[0].ndim else 1
        scale = self._parts.state[0].value() / rows

        def scaled(*args: Any) -> Any:
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
