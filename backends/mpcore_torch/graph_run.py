"""A model that runs as its graphs do: dynamo finds the pieces, a plan says what each becomes."""

from __future__ import annotations

import contextlib
import inspect
import warnings
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.callback import callback_handler
from torch._dynamo.exc import BackendCompilerFailed
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from mpcore.errors import GraphError
from mpcore_torch import regions
from mpcore_torch.graph_casts import one_forward
from mpcore_torch.graph_direct import direct
from mpcore_torch.graph_lift import Piece, names_of, piece_of
from mpcore_torch.graph_marks import HEARING
from mpcore_torch.graph_trace import traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MARK", "Named", "Runner"]

MARK = "mpcore::graph"
_SETTINGS = {  # while a piece is traced
    "allow_rnn": True,
    "skip_nnmodule_hook_guards": False,  # a hook that comes later is called, too
}
_MOST_PIECES = 64  # of one place in the code: shapes, modes, branches


@dataclass
class Runner:
    """Runs a function of a model piece by piece.

    Attributes:
        model: the model that the pieces' parameters belong to.
        lower: makes of a piece what gives the module that runs in its place.
        pieces: those that were met, in order.
        closed: whether regions of the framework are closed inside: the plan casts.
        at: where somebody wants to know which call runs: its last entry is the call's name.
        marks: whether pieces are marked for the profiler.
        ran: how often a piece ran.
    """

    model: Any
    lower: Callable[[Piece], Callable[[], Any]]
    pieces: list[Piece] = field(default_factory=list)
    closed: bool = True
    at: list[str] | None = None
    marks: bool = False
    ran: int = 0

    def __post_init__(self) -> None:
        """Hold the model weakly: it holds what holds this."""
        self.model = weakref.ref(self.model)
        self._modes: list[Any] = []
        self._compiled: Any = None

    def bind(self, function: Callable[..., Any]) -> None:
        """Say what runs: a function of the model, which dynamo must not keep, and arguments."""
        if "recompile_limit" not in inspect.signature(torch.compile).parameters:
            msg = (
                f"by='graph' needs a newer torch than {torch.__version__}: it was run on 2.13, and "
                "2.11 cannot compile a piece apart from others; use by='op' or by='layer'"
            )
            raise GraphError(msg)
        self._compiled = torch.compile(
            function,
            backend=self._backend,
            recompile_limit=_MOST_PIECES,
            isolate_recompiles=True,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it; no region of the framework decides inside."""
        before = self.ran
        closed = _close_regions() if self.closed else ()
        config = torch._dynamo.config
        failed = config.fail_on_recompile_limit_hit
        _listen()
        _RUNNING[0] += 1
        try:
            config.fail_on_recompile_limit_hit = True
            with one_forward():
                if _get_current_function_mode_stack() or _get_current_dispatch_mode_stack():
                    with self._without_modes():
                        made = self._compiled(self.model(), *args, **kwargs)
                else:
                    made = self._compiled(self.model(), *args, **kwargs)
        except BackendCompilerFailed as exc:
            inner = exc.inner_exception
            if isinstance(inner, GraphError):
                raise inner from inner.__cause__
            msg = f"a piece of the model cannot be lifted: {inner}; use by='op' or by='layer'"
            raise GraphError(msg.replace("\n", " ")) from exc
        except torch._dynamo.exc.FailOnRecompileLimitHit as exc:
            msg = (
                f"by='graph' met more than {_MOST_PIECES} shapes or paths of one piece of code; "
                "pad the batches to fewer shapes, or use by='op'"
            )
            raise GraphError(msg) from exc
        finally:
            _RUNNING[0] -= 1
            config.fail_on_recompile_limit_hit = failed
            for kind in closed:
                torch.set_autocast_enabled(kind, True)
        if self.ran == before and self.pieces:
            msg = (
                f"{type(self.model()).__name__} ran outside of its graphs, where no plan reaches: "
                "torch.compiler.set_stance('force_eager'), or a tool that looks at the values of "
                "every layer, keeps dynamo away; amp.graphs, mp.explain and mp.observe tell what "
                "calls do, such tools work by='op'"
            )
            raise GraphError(msg)
        return made

    @contextlib.contextmanager
    def _without_modes(self) -> Iterator[None]:
        """Take modes off while dynamo looks, which they would stop; the pieces run under them."""
        functions = _get_current_function_mode_stack()
        dispatch = _get_current_dispatch_mode_stack()
        self._modes.append((functions, dispatch))
        taken = [_pop_mode() for _ in functions]
        try:
            with _disable_current_modes() if dispatch else contextlib.nullcontext():
                yield
        finally:
            for mode in reversed(taken):
                _push_mode(mode)
            self._modes.pop()

    def _backend(self, module: Any, inputs: list[Any]) -> Callable[..., Any]:
        model = self.model()
        if not any(node.op.startswith("call") for node in module.graph.nodes):
            return module.forward  # type: ignore[no-any-return]  # torch is not followed
        modules = {id(each): path for path, each in model.named_modules()}
        piece = piece_of(traced(module), inputs, names_of(model), modules)
        lowered = self.lower(piece)
        self.pieces.append(piece)
        made: dict[str, Any] = {}

        def run(*args: Any) -> Any:
            self.ran += 1
            if self._modes:
                functions, dispatch = self._modes[-1]
                with contextlib.ExitStack() as stack:
                    for mode in (*functions, *dispatch):
                        stack.enter_context(mode)
                    return self._run(lowered(), args)
            code = lowered()
            if self.at is not None or self.marks or HEARING:
                return self._run(code, args)
            if made.get("of") is not code:
                made.update(of=code, call=direct(code))
            return made["call"](*args)

        return run

    def _run(self, code: Any, args: tuple[Any, ...]) -> Any:
        """Run a piece that somebody watches."""
        with torch.profiler.record_function(MARK) if self.marks else contextlib.nullcontext():
            if HEARING:
                return HEARING[-1](code, args)
            return code(*args) if self.at is None else Named(code, self.at).run(*args)


class Named(fx.Interpreter):  # type: ignore[misc]  # torch is not followed
    """Runs a module call by call, and says which."""

    def __init__(self, module: Any, at: list[str]) -> None:
        super().__init__(module)
        self.at = at

    def run_node(self, n: fx.Node) -> Any:
        """Run one call; what a plan put in goes by the call that comes next."""
        self.at[-1] = n.meta.get("mpcore", self.at[-1])
        return super().run_node(n)


_RUNNING = [0]
_TRACING: list[contextlib.ExitStack] = []


def _begins(_: Any) -> None:
    if _RUNNING[0]:
        # Dynamo warns of what it meets while it looks; that is not the user's code running.
        stack = contextlib.ExitStack()
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch._dynamo.config.patch(_SETTINGS))
        _TRACING.append(stack)


def _ends(_: Any) -> None:
    if _TRACING:
        _TRACING.pop().close()


def _listen() -> None:
    """Hear when dynamo traces; ``torch._dynamo.reset()`` forgets who does."""
    if _begins not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_begins)
    if _ends not in callback_handler.end_callbacks:
        callback_handler.register_end_callback(_ends)


def _close_regions() -> list[str]:
    """Close the regions that are open, as cheaply as a step wants it; return their devices."""
    found = [kind for kind in regions.KINDS if torch.is_autocast_enabled(kind)]
    for kind in found:
        torch.set_autocast_enabled(kind, False)
    return found
