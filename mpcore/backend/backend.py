"""What the core asks of a framework, what a framework says it can do, and how one is found."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mpcore.errors import BackendError, BackendMissingError, OptimizerError, check_choice

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from mpcore.amp.amp import Amp
    from mpcore.policy.layer import Layer
    from mpcore.policy.plan import Plan
    from mpcore.policy.policy import Policy
    from mpcore.step.transaction import StepOptions

__all__ = [
    "Backend",
    "Capabilities",
    "Support",
    "backend_names",
    "check_policy",
    "find_backend",
    "load_backend",
    "refuse_shared",
]


@dataclass(frozen=True)
class Support:
    """Whether something can be had, and why.

    Attributes:
        level: ``"native"``: the framework has it; ``"simulated"``: this backend rounds around
            float32 operations; ``"wrong"``: it runs, and the numbers are wrong; ``"absent"``.
        reason: why, or what to know beside it, such as that it is slow.
        advice: what to do instead; ``""`` for nothing.
        source: where this is known from; ``""`` for the backend itself.
    """

    level: str
    reason: str = ""
    advice: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse an unknown level."""
        check_choice("support.level", self.level, ("native", "simulated", "wrong", "absent"))


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do on one device.

    Attributes:
        backend: name of the backend.
        device: device in the framework's words, such as ``"cpu"`` or ``"cuda:0"``.
        versions: versions of the packages that carry it out.
        compute: support of each 16-bit compute dtype.
        by: support of each mechanism ``"op"``, ``"layer"``, ``"model"``.
        overflow: kind of the detector that ``"auto"`` stands for on this device.
        rules: rule targets that each mechanism honours.
        masters: schemes of master weights that it carries out.
        optimizer_state: dtypes that it can keep an optimizer's moments in.
        op_lists: op lists that it has under by="op".
        mode: how it runs here: ``"eager"`` or ``"graph"``.
        stored: dtypes that a model's parameters may have when it is prepared. Those of 16 bits
            that are trained get float32 values (``Amp.widened``), frozen ones stay as they are.
        compiles_steps: whether ``prepare(compile="always")`` can be honoured.
        replans: whether ``prepare(on_overflow="keep full")`` can: a plan changed while training.
        compiles_updates: whether ``prepare(update="compiled")`` can be honoured.
    """

    backend: str
    device: str
    versions: Mapping[str, str]
    compute: Mapping[str, Support]
    by: Mapping[str, Support]
    overflow: str = "values"
    rules: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            "op": (),
            "layer": ("path", "layer", "op"),
            "model": ("path", "layer", "op"),
        }
    )
    masters: tuple[str, ...] = ("none", "copy")
    optimizer_state: tuple[str, ...] = ("float32",)
    op_lists: tuple[str, ...] = ("native",)
    mode: str = "eager"
    stored: tuple[str, ...] = ("float32",)
    compiles_steps: bool = False
    replans: bool = False
    compiles_updates: bool = False


@runtime_checkable
class Backend(Protocol):
    """One framework. Adapters hold no decisions: they list, say what they can, and carry out."""

    name: str

    def capabilities(self, model: Any = None, /) -> Capabilities:
        """Return what can be done on the device that ``model`` lives on (or the default one)."""
        ...

    def layers(self, model: Any, /) -> list[Layer]:
        """Return every layer of ``model``, containers included, in the order of definition."""
        ...

    def check_pair(self, model: Any, optimizer: Any, /) -> None:
        """Raise OptimizerError unless ``optimizer`` can train ``model``."""
        ...

    def check_apart(self, optimizers: Mapping[str, Any], /) -> None:
        """Raise OptimizerError if two optimizers hold the same parameter."""
        ...

    def attach(
        self,
        model: Any,
        optimizers: Mapping[str, Any],
        plan: Plan,
        options: StepOptions,
        /,
        *,
        simulated: bool,
    ) -> Amp:
        """Apply ``plan`` to ``model`` in place and return the object that runs its steps."""
        ...


def backend_names() -> list[str]:
    """Return the names of the installed backends; imports none of them."""
    return sorted(point.name for point in metadata.entry_points(group="mpcore.backends"))


def load_backend(name: str) -> Backend:
    """Return the backend called ``name``; this imports its framework.

    Raises:
        BackendError: no backend has that name.
        BackendMissingError: its framework is not installed.
    """
    points = {point.name: point for point in metadata.entry_points(group="mpcore.backends")}
    check_choice("backend", name, sorted(points), BackendError)
    return _loaded(points[name], name)


def _loaded(point: metadata.EntryPoint, name: str) -> Backend:
    try:
        backend: Backend = point.load()()
    except ImportError as exc:
        msg = (
            f"the {name} backend needs a package that is missing or too old ({exc}); "
            f'install it with: pip install --upgrade "mpcore[{name}]"'
        )
        raise BackendMissingError(msg) from exc
    return backend


_MODELS: dict[str, metadata.EntryPoint] = {}


def find_backend(model: Any) -> Backend:
    """Return the backend that ``model`` belongs to, judged by its classes' modules alone.

    Raises:
        BackendError: no installed backend knows objects of this kind.
        BackendMissingError: its framework is older than mpcore needs.
    """
    roots = [cls.__module__.partition(".")[0] for cls in type(model).__mro__]
    known = any(root in _MODELS for root in roots)
    if not known:  # what is installed is looked through once: 4 ms, a third of `prepare`
        _MODELS.update({p.name: p for p in metadata.entry_points(group="mpcore.models")})
    for root in roots:
        if root in _MODELS:
            point = _MODELS[root]
            return _loaded(point, point.module.removeprefix("mpcore_"))
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    msg = (
        "`model` must be a torch.nn.Module, keras.Model, mindspore.nn.Cell, flax.nnx.Module or "
        f"mpcore_numpy.Model, got {kind}"
    )
    raise BackendError(msg)


def refuse_shared(held: Mapping[str, Iterable[tuple[Hashable, str]]]) -> None:
    """Raise OptimizerError if two optimizers move the same parameter.

    Args:
        held: by the name of each optimizer, what tells each of its parameters from all others,
            and its path.
    """
    owners: dict[Hashable, str] = {}
    for name, params in held.items():
        for key, path in params:
            if key in owners:
                msg = f"`optimizer` {name!r} must not move {path}, {owners[key]!r} does"
                raise OptimizerError(msg)
            owners[key] = name


def check_policy(policy: Policy, can: Capabilities) -> bool:
    """Return whether ``policy`` has to be simulated on this backend.

    Raises:
        BackendError: the backend cannot honour the policy; with the reason and what it can.
    """
    where = f"{can.backend} on {can.device}"
    by = can.by.get(policy.by, Support("absent", "it cannot lift a model to a graph"))
    if by.level == "absent":
        others = ", ".join(repr(name) for name, s in can.by.items() if s.level != "absent")
        msg = f"by={policy.by!r} is not possible in {where}: {by.reason}; it has by={others}"
        raise BackendError(msg)
    for name, value, has in (
        ("master", policy.scheme.name, can.masters),
        ("optimizer_state", policy.optimizer_state, can.optimizer_state),
        ("op_list", policy.op_list, can.op_lists),
    ):
        if value not in has:
            msg = f"`{name}` {value!r} is not possible in {where}; it has {', '.join(has)}"
            raise BackendError(msg)
    rules = (*policy.rules, *policy.defaults)
    for rule in rules:
        if rule.target not in can.rules[policy.by]:
            msg = (
                f"rule {str(rule)!r} is not possible in {where} with by={policy.by!r}; "
                "use by='layer' with a path or a layer"
            )
            raise BackendError(msg)
    words = {word for rule in rules for word in (rule.precision, rule.output)}
    wanted = {policy.compute, *words} & set(can.compute)
    simulated = False
    for dtype in sorted(wanted):
        support = can.compute[dtype]
        if support.level == "absent" or (
            support.level == "simulated" and (policy.simulation == "refuse" or policy.by == "op")
        ):
            fits = [d for d, s in can.compute.items() if s.level == "native"]
            msg = (
                f"{dtype} is {support.level} in {where}: {support.reason}; native there: "
                f"{', '.join(['float32', *fits])}"
                + (" (by='layer' can simulate it)" if support.level == "simulated" else "")
            )
            raise BackendError(msg)
        simulated |= support.level == "simulated"
    return simulated
