"""What stands in a step of torch for a value, a network or a loss that is not there.

It takes every call and attribute. Called with tensors it is a small network, whose parameters an
optimizer can be given; one that is called a loss gives a number. Both sides of a comparison have
the same one. What a network gives has one of ``FORMS``.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import re
import sys
import types
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore_port.stubs.devices import DEVICE
from mpcore_port.verify.as_dict import (
    asked_at_once,
    attribute_at_once,
    compared_at_first,
    read_of_updated,
    taken_as_dict,
)
from mpcore_port.verify.asked import Asked, asks_on
from mpcore_port.verify.environments import Environment, makes_one
from mpcore_port.verify.kit import TorchKit
from mpcore_port.verify.roles import (
    LOSS,
    NETWORK,
    OF_WEIGHTS,
    SCALER,
    SETTINGS,
    flag_of,
    number_of,
    says_number,
)
from mpcore_port.verify.scaler import CALLED
from mpcore_port.verify.synthetic import VERSION, Missing, passes_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "OPERATORS",
    "StandIn",
    "answer",
    "bound_to",
    "index_of",
    "keep",
    "names_wanted",
    "number_like",
    "numbers_in",
    "place_like",
    "set_form",
    "shapes_of",
    "use",
    "used",
]

_WIDTH = 32
_CLASSES = 10
_TAKEN = 16  # numbers of each sample
_HERE = tuple(  # files whose functions hand on; probe has something in the place of DDP's forward
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("stand_in", "environments", "kit", "probe")
)
_NAME = 40  # characters of a file's name
_LENGTH = 1024  # of a data set: scripts ask for enough
_THROUGH = "through a network"  # an answer to which the network that is handed in adds
_OF_NETWORK = "of a network"  # a loss that is handed a network, and nothing that it made
_HISTORY = re.compile(r"(^|[._])history$", re.I)  # of epochs: none was before the first
_form = ["scores"]
_kit: list[Any] = [TorchKit()]
_asked = [Asked()]
_used: list[str] = []
_words: dict[str, str] = {}
_TALKS = re.compile(r"(add|log|write|record|report|display|show|plot|print|save)(_\w+)?|info", re.I)
_NOT_TRAINING = re.compile(r"test|eval|val|infer|predict|sample|none|resume|debug", re.I)


_PLACE = re.compile(r"^((cuda_?|gpu_?)?device(_?(id|index|idx|num|type|name))?|local_rank)$", re.I)
_NUMBER = re.compile(r"(id|index|idx|num|rank)$", re.I)
_OF_GROUP = re.compile(r"[a-z]+(_[a-z]+)+")


def _known(name: str) -> Any:
    """Return what a setting of that name is, whatever the script; None for others."""
    if _PLACE.search(name):
        return 0 if _NUMBER.search(name) else DEVICE
    if re.search(r"(^|_)opt_level$", name, re.I):  # of apex, which takes no other word
        return "O1"
    return _kit[0].float32 if re.search(r"(^|_)dtype$", name, re.I) else None


def set_form(form: str) -> None:
    """Say what networks give, one of ``FORMS``."""
    _form[0] = form


def use(kit: Any) -> None:
    """Make networks of another framework than torch; ``kit`` has what ``kit.TorchKit`` has."""
    _kit[0] = kit


def keep(asked: Asked) -> None:
    """Say where what callers ask of networks is kept, or comes from."""
    _asked[0] = asked


def used() -> list[str]:
    """Return the names of networks and losses that were called."""
    return _used


def asked_of(frame: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return what the caller of a network makes of its answer: parts, a loss, or what has names.

    What is handed a network, and nothing that it made, runs it: ``diffusion.losses(net, x, t)``.
    """
    found = _asked_of(frame, args, kwargs)
    moved = any(one.requires_grad for one in _tensors((args, kwargs)))
    through = bool(_networks(args)) and not moved and found[-1:] != [_OF_NETWORK]
    return [*found, _THROUGH] if through else found


def _asked_of(frame: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    caller = _caller(frame)
    parts = _unpacked(caller.f_code).get(caller.f_lasti, ())
    stored = _stored(caller.f_code).get(caller.f_lasti, "")
    by_name = not args or "labels" in kwargs or _asks_answers(caller.f_code)
    by_name = by_name and not compared_at_first(caller.f_code, stored)
    if not (parts or by_name) and taken_as_dict(caller.f_code, stored):
        return ["losses" if LOSS.search(stored) else "keys"]
    if not (parts or stored) and asked_at_once(caller.f_code, caller.f_lasti):
        return ["keys"]
    if not parts and attribute_at_once(caller.f_code, caller.f_lasti) in _AT_ONCE:
        return ["named"]
    if not parts and LOSS.search(stored):
        moved = any(one.requires_grad for one in _tensors((args, kwargs)))
        return ["loss"] if moved or not _networks(args) else ["loss", _OF_NETWORK]
    if not parts and by_name:  # a model of Hugging Face's
        return ["named"]
    return ["parts", *_marked(caller.f_code, parts)]


def answer(net: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a small network gives for tensors: of the form that is set, as it is asked for.

    Args:
        net: has ``name``, ``classes``, and the parameters that ``shapes_of`` names.
        args: what it is called with.
        kwargs: the same, by name.
    """
    tensors = list(_tensors((args, kwargs)))
    if not tensors:
        return StandIn(net.name)
    frame = sys._getframe(2)
    caller = _caller(frame)
    talks = _TALKS.fullmatch(net.name.rpartition(".")[2])
    if net.name not in _used and not (talks and caller.f_lasti in _dropped(caller.f_code)):
        _used.append(net.name)
    kind, *parts = _asked[0].of(net.name, lambda: asked_of(frame, args, kwargs))
    if parts == [_OF_NETWORK]:
        return _of_network(args, tensors)
    given = _given(net, tensors)
    if parts[-1:] == [_THROUGH]:
        parts.pop()
        given = given + _of_network(args, tensors)
    if kind == "loss":
        return given.float().square().mean()
    if kind in ("keys", "losses"):
        return _Keys(given, of_losses=kind == "losses")
    return _Answer(given) if kind == "named" else _in_parts(given, tuple(parts))


def shapes_of(classes: int) -> dict[str, tuple[int, ...]]:
    """Return the parameters of a small network."""
    return {"first": (_WIDTH, _TAKEN), "last": (classes, _WIDTH), "shift": (1,), "gain": (1,)}


def _given(net: Any, tensors: list[Any]) -> Any:
    kit = _kit[0]
    whole = next((t for t in tensors if t.is_floating_point() and t.dim()), tensors[0])
    x = whole if whole.is_floating_point() else (whole % 17).to(net.first.dtype) / 17
    flat = x.reshape(x.shape[0] if x.dim() else 1, -1).to(net.first.dtype)[:, :_TAKEN]
    hidden = kit.relu(kit.linear(kit.widened(flat, _TAKEN), net.first))
    scores = kit.linear(hidden, net.last)
    if _form[0] == "number":
        return scores.mean() + net.shift.mean() * net.gain.mean()
    if _form[0] == "same" and whole.is_floating_point():
        return x * net.gain + net.shift + scores.mean()
    if _form[0] == "map" and x.dim() > 2:
        spread = scores.reshape(*scores.shape, *[1] * (x.dim() - 2))
        return spread + (x.mean(1, keepdim=True) * net.gain + net.shift)
    if not whole.is_floating_point() and whole.dim() == 2:
        return scores[:, None, :] + (x[..., None] * net.gain + net.shift)
    return scores + net.shift * net.gain


def _asks_answers(code: Any) -> bool:
    """Return whether a function asks for what answers of such models hold; its own names apart."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED and _HELD & set(code.co_names))


_AT_ONCE = {
    *("sample", "latent_dist", "logits", "last_hidden_state", "pooler_output", "hidden_states"),
    *("image_embeds", "text_embeds", "embeddings", "prev_sample", "latents"),
}
"""What is read of an answer as soon as it is there: ``vae.encode(x).latent_dist.sample()``."""
_HELD = {"logits", "aux_loss", "last_hidden_state"}


def _asked_of_loss(frame: Any, args: tuple[Any, ...], tensors: list[Any]) -> list[Any]:
    """Return the place of what a loss is made of, whether a dict is asked for, and its parts."""
    floats: list[Any] = [place for place, t in enumerate(tensors) if t.is_floating_point()]
    moved = [place for place, t in enumerate(tensors) if getattr(t, "requires_grad", False)]
    if not moved and _networks(args):
        floats = [_OF_NETWORK]
    stored = _stored(frame.f_code).get(frame.f_lasti, "")
    is_dict = _is_dict(frame.f_code, stored) or asked_at_once(frame.f_code, frame.f_lasti)
    return [
        *(*moved, *floats, 0)[:1],
        is_dict,
        *(() if is_dict else _marked(_caller(frame).f_code, names_wanted(frame))),
    ]


def _networks(args: tuple[Any, ...]) -> list[Any]:
    """Return the networks that a call is handed: those of which something was asked as one."""
    made = [one._mpcore_net if type(one) is StandIn else one for one in args]
    return [one for one in made if isinstance(one, _kit[0].Module)]


def _of_network(args: tuple[Any, ...], tensors: list[Any]) -> Any:
    """Return a loss of what the first network of a call makes of its first tensor."""
    whole = next((one for one in tensors if one.is_floating_point()), tensors[0])
    network = _networks(args)[0]
    small = getattr(network, "module", network)
    if not isinstance(small, StandIn) and "_mpcore_owner" not in vars(small):
        return _of_weights((network, whole)) * 0.5  # the script's own may want more than one tensor
    return _given(small, [whole]).float().square().mean() * 0.5


def _of_weights(args: tuple[Any, ...]) -> Any:
    """Return a loss of weights that optimizers were given: of the networks of a call, or of all.

    Matrices are multiplied with its last tensor, as layers do, so that autocast has work.
    """
    kit = _kit[0]
    given = {id(one): one for one in kit.given}  # once each, to whatever optimizers
    held = [one for net in _networks(args) for one in kit.parameters(net)]
    weights = [one for one in held if id(one) in given] or list(given.values())
    if not weights:
        msg = "there are no weights of which a loss can be made"
        raise TypeError(msg)
    x = args[-1].reshape(args[-1].shape[0], -1)[:, :_TAKEN]
    total = 0.0
    for weight in weights:
        made = weight
        if weight.ndim > 1:
            rows = weight.reshape(weight.shape[0], -1)[:, :_TAKEN]
            made = kit.linear(x, kit.widened(rows, _TAKEN))
        total = total + made.float().square().mean()
    return total / len(weights)


def _in_parts(given: Any, parts: Sequence[Any]) -> Any:
    """Return as many as the caller takes apart; what it calls a loss is a number."""
    if len(parts) < 2:
        return (_part(given, parts[0]),) if parts and isinstance(parts[0], str) else given
    return tuple(
        _in_parts(given, part) if isinstance(part, (list, tuple)) else _part(given, part)
        for part in parts
    )


def _marked(code: Any, names: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return names, those marked that a function takes for dictionaries: ``loss, logs = ...``."""
    return tuple(
        f"{one}{_IS_DICT}" if isinstance(one, str) and _is_dict(code, one) else one for one in names
    )


def _is_dict(code: Any, name: str) -> bool:
    return "dict" in name or _TOLD.fullmatch(name) is not None or taken_as_dict(code, name)


_TOLD = re.compile(r"(\w+_)?(stats|log_vars|logs|logging_outputs?)")


_IS_DICT = "{}"


def _part(given: Any, name: str) -> Any:
    if name.endswith(_IS_DICT):
        return _Keys(given, of_losses=True)
    rows = isinstance(given, _kit[0].Tensor) and given.dim()
    one = given.float().square().mean() if rows and LOSS.search(name) else given
    return [one] if re.search(r"(^|_)losses(_|$)", name) else one


_MEASURES = re.compile(r"accuracy|(^|_)(acc|iou|miou|psnr|ssim|f1|top_?k)(_|$)", re.I)
"""Functions that measure how good answers are: numbers, where networks give rows."""


_MIXES = re.compile(r"(\w+_)?mixup(_fn|_func|_function)?|\w*Mixup", re.I)
"""What mixes pictures and makes shares of classes, as timm's ``Mixup``: it mixes none here."""


_OF_WEIGHTS = re.compile(
    r"(load|resume|restore|convert|wrap|prepare|init|freeze|compile)(_\w+)?"
    r"|\w+_(ckpt|checkpoint|pretrained|weights)",
    re.I,
)
"""Functions that give the network back that they are handed."""


class StandIn(Missing):
    """A value that is not there: a number, a network, a loss, a logger, as it is used."""

    __slots__ = ("_mpcore_classes", "_mpcore_imported", "_mpcore_net", "_mpcore_owner")

    def __init__(
        self,
        name: Any = "value",
        classes: Any = _CLASSES,
        *_: Any,
        imported: bool = False,
        **__: Any,
    ) -> None:
        super().__init__(name)
        self._mpcore_classes = classes if isinstance(classes, int) else _CLASSES
        self._mpcore_net: Any = None
        self._mpcore_owner: Any = None
        self._mpcore_imported = imported

    # --- a network ----------------------------------------------------------------------------

    def _mpcore_module(self) -> Any:
        """Return the network that this is."""
        if self._mpcore_net is None:
            self._mpcore_net = _kit[0].network(self, self._mpcore_name, self._mpcore_classes)
        return self._mpcore_net

    def __getattr__(self, name: str) -> Any:
        if name in ("__all__", "__version__"):  # of a module
            return [] if name == "__all__" else VERSION
        if name.startswith(("__", "_mpcore")):
            raise AttributeError(name)
        if "state_dict" in name and self._mpcore_is_scaler():
            return getattr(self._mpcore_scaler, name)
        if name in _kit[0].moves:
            return _Method(self, name)
        if name in _kit[0].of_module:
            return _OfModule(self, name)
        if name == "module":
            return self
        if name == "device":
            return DEVICE
        return self._mpcore_part(name)

    def _mpcore_is_scaler(self) -> bool:
        """Return whether this is, by its name, a class around a scaler; it is made then."""
        if CALLED.fullmatch(self._mpcore_name.rpartition(".")[2]) is None:
            return False
        if "_mpcore_scaler" not in vars(self):
            self._mpcore_scaler = _kit[0].scaler()
        return True

    def _mpcore_part(self, name: str) -> Any:
        """Return what is asked of it by name; settings have mixed precision on."""
        if name.lower() == "betas":
            return (0.9, 0.999)
        root = self._mpcore_name.partition(".")[0]
        known = _known(name) if SETTINGS.fullmatch(root) else None
        if known is not None:
            return known
        whole = f"{self._mpcore_name}.{name}"
        if flag_of(whole) and SETTINGS.fullmatch(root) and not asks_on(sys._getframe(2)):
            return True
        part = StandIn(whole, imported=self._mpcore_imported)
        part._mpcore_owner = self
        return part

    def _mpcore_is_function(self, given: Any) -> bool:
        """Return whether this is imported, called as it is, and no network: it has no weights."""
        if not self._mpcore_imported or self._mpcore_net is not None or _networks(given):
            return False
        return NETWORK.fullmatch(self._mpcore_name.rpartition(".")[2]) is None

    def _mpcore_kept(self, made: StandIn, args: tuple[Any, ...], names: tuple[Any, ...]) -> Any:
        """Return what a call gives; in it the networks that the caller binds to their own names.

        ``net, update = surgery(net, epoch)`` goes on with the network that its optimizer was given.
        """
        if not names or not _networks(args):
            return made
        caller = _caller(sys._getframe(1))
        asked = _asked[0].of(f"{self._mpcore_name}[]", lambda: _own_places(caller, names, args))
        if len(asked) != len(names) or max(asked, default=-1) < 0:
            return made
        pairs = zip(made, asked, strict=True)
        return tuple(one if place < 0 else args[place] for one, place in pairs)

    def _mpcore_of(self) -> list[Any]:
        """Return the network whose method this is: ``model.calculate_loss(batch)`` is of it."""
        owner = self._mpcore_owner
        known = type(owner) is StandIn and NETWORK.fullmatch(owner._mpcore_name.rpartition(".")[2])
        return [owner._mpcore_module()] if known else []

    def _mpcore_given_back(self, args: tuple[Any, ...], tensors: list[Any]) -> list[Any]:
        """Return what a function gives back as it was; [] where it makes something else.

        Pictures that are transformed, numbers that are reduced over all ranks, and what the caller
        binds to the names that it had: ``image = resize(image)``.
        """
        if PICTURES.match(self._mpcore_name) or not any(one.dim() for one in tensors):
            return tensors[:1]
        frame = _caller(sys._getframe(2))
        places = _asked[0].of(f"{self._mpcore_name}()", lambda: _bound_anew(frame, args))
        return [args[place] for place in places if place < len(args)]

    def _mpcore_some(self, given: Any) -> list[Any]:
        """Return what ``net.backbone_parameters()`` gives an optimizer; [] for other calls.

        It is all, where nothing else of the kind is asked of the network: each gets its share then,
        in the lists that were handed out before, too.

        Args:
            given: what it is called with: ``net.get_params(key="1x")`` gives others with "10x".
        """
        owner, last = self._mpcore_owner, self._mpcore_name.rpartition(".")[2]
        if type(owner) is not StandIn or not re.fullmatch(r"\w+_param(eter)?s", last):
            return []
        if SETTINGS.fullmatch(owner._mpcore_name.rpartition(".")[2]):
            return []
        shares: dict[str, list[Any]] = vars(owner).setdefault("_mpcore_shares", {})
        mine = shares.setdefault(f"{last}{given}", [])
        every = _kit[0].parameters(owner._mpcore_module())
        for place, share in enumerate(shares.values()):
            share[:] = every[place :: len(shares)]
        return mine

    def _mpcore_groups(self) -> list[Any]:
        """Return what an optimizer is made for that a network makes itself; [] for no such call."""
        owner, name = self._mpcore_owner, self._mpcore_name.rpartition(".")[2].lower()
        if owner is None or not re.fullmatch(r"(configure|make|get|build|create)_optim\w*", name):
            return []
        made = vars(owner).get("_mpcore_gave")  # exp.get_model(), and then exp.get_optimizer()
        groups: list[Any] = _kit[0].parameters(made or owner._mpcore_module())
        return groups

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what a network or a loss gives for tensors, else something that is not there."""
        if len(args) == 1 and not kwargs and _is_closure(args[0]):
            parts = names_wanted(sys._getframe(1))
            if len(parts) > 1:  # out, seconds = timed(step)
                beside = [StandIn(f"{self._mpcore_name}.{one}") for one in parts[1:]]
                return (args[0](), *beside)
        handed_on = passes_on(self._mpcore_name, args, kwargs)
        if handed_on is not None:
            return handed_on
        if len(args) > 1 and self._mpcore_is_scaler():
            return self._mpcore_scaler(*args, **kwargs)
        if self._mpcore_name == OF_WEIGHTS:
            return _in_parts(_of_weights(args), tuple(names_wanted(sys._getframe(1))))
        if self._mpcore_name.endswith(".item") and not (args or kwargs):  # net.temperature.item()
            return float(number_of(self._mpcore_name.rpartition(".")[0]))
        if makes_one(self._mpcore_name):
            _used.append(self._mpcore_name)
            return Environment(lambda: len(names_wanted(sys._getframe(2))))
        if self._mpcore_name.endswith(".backward") and args:
            return args[0].backward()  # of what hosts a loop
        if lent := _lent(self._mpcore_name, (*args, *kwargs.values())):
            return lent
        if some := self._mpcore_some((args, kwargs)):
            return some
        groups = _groups(self._mpcore_name, (*args, *kwargs.values())) or self._mpcore_groups()
        if groups and "norm" in self._mpcore_name.rpartition(".")[2].lower():
            return _kit[0].number(1.0)  # get_grad_norm(net.parameters())
        if groups:
            made = _kit[0].optimizer(groups)
            return self._mpcore_beside(made, names_wanted(sys._getframe(1)))
        tensors = list(_tensors((args, kwargs)))
        if not tensors and re.search(r"\.(size|numel)$", self._mpcore_name):
            return _LENGTH  # of data that is not there: loops over it go on for long enough
        if not tensors and re.search(r"(^|_)dtype$", self._mpcore_name.rpartition(".")[2]):
            return _kit[0].float32
        if not tensors:
            frame = sys._getframe(1)
            name = self._mpcore_bound_to(frame)
            made = StandIn(name, _classes(kwargs) or self._mpcore_classes)
            if not _names_a_network(frame):
                return self._mpcore_kept(made, args, names_wanted(frame))
            if self._mpcore_is_of_weights() and (handed := _networks(args)):
                return handed[0]  # model = load_ckpt(model, ckpt)
            if type(self._mpcore_owner) is StandIn:
                vars(self._mpcore_owner)["_mpcore_gave"] = made._mpcore_module()
            return made._mpcore_module()
        if _MIXES.fullmatch(self._mpcore_name.rpartition(".")[2]) and len(args) == 2:
            return args[0], _kit[0].shares(args[1], self._mpcore_classes)
        if not LOSS.search(self._mpcore_name):
            is_function = self._mpcore_is_function(args)
            if is_function and isinstance(args[0] if args else None, dict):
                return args[0]  # moved, or reduced over all ranks
            back = self._mpcore_given_back(args, tensors) if is_function else []
            if back:
                return back[0] if len(back) == 1 else tuple(back)
            if is_function and _MEASURES.search(self._mpcore_name.rpartition(".")[2]):
                number = tensors[0].float().mean().reshape(1)
                return _in_parts(number, tuple(names_wanted(sys._getframe(1))))
            network = self._mpcore_module()
            if is_function:
                _kit[0].freeze(network)
            return network(*args, **kwargs)
        if self._mpcore_name not in _used:
            _used.append(self._mpcore_name)
        frame = sys._getframe(1)
        args = (*args, *self._mpcore_of())
        asked = _asked[0].of(self._mpcore_name, lambda: _asked_of_loss(frame, args, tensors))
        place, is_dict, *names = asked
        of_network = place == _OF_NETWORK
        given = (
            _of_network(args, tensors)
            if of_network
            else tensors[place].float().square().mean() * 0.5
        )
        return _Losses(loss_all=given) if is_dict else _in_parts(given, tuple(names))

    def _mpcore_is_of_weights(self) -> bool:
        """Return whether a function gives a network back with other weights, or made ready."""
        return _OF_WEIGHTS.fullmatch(self._mpcore_name.rpartition(".")[2]) is not None

    def _mpcore_bound_to(self, frame: Any) -> str:
        """Return the name of what a call gives: it ends in what the caller's name says a number of.

        Of ``start_epoch = resume(path)`` more is known than of what ``resume`` gives.
        """
        code, place = frame.f_code, frame.f_lasti
        (stored,) = _asked[0].of(f"{self._mpcore_name}=", lambda: [_stored(code).get(place, "")])
        return f"{self._mpcore_name}.{stored}" if says_number(stored) else self._mpcore_name

    def _mpcore_beside(self, optimizer: Any, names: tuple[Any, ...]) -> Any:
        """Return an optimizer, with stand-ins for what the caller takes apart beside it."""
        if len(names) < 2:
            return optimizer
        place = next((i for i, one in enumerate(names) if "optim" in str(one).lower()), 0)
        parts = [StandIn(f"{self._mpcore_name}.{one}") for one in names]
        return (*parts[:place], optimizer, *parts[place + 1 :])

    @classmethod
    def __torch_function__(
        cls, function: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Let functions of torch take it for a number: in a tensor, or as it is for a size."""
        given = kwargs or {}
        named = {name: _tensor_like(value) for name, value in given.items()}
        try:
            return function(*map(_tensor_like, args), **named)
        except TypeError:
            return function(*map(number_like, args), **numbers_in(given))

    # --- a word -------------------------------------------------------------------------------

    def __eq__(self, other: object) -> Any:
        """Be the number that its name says, or the first word that it is compared with.

        One branch is taken, on both sides: a port may compare it with others first, and takes the
        original's.
        """
        name = self._mpcore_name
        if type(other) in (int, float) and says_number(name):
            return bool(_number(self) == other)
        if not isinstance(other, str) or _NOT_TRAINING.search(other):
            return NotImplemented
        (word,) = _asked[0].of(f"{name}==", lambda: [_words.setdefault(name, other)])
        return bool(word == other)

    __hash__ = object.__hash__

    # --- a number -----------------------------------------------------------------------------

    def __bool__(self) -> bool:
        name = self._mpcore_name
        return flag_of(name) or SETTINGS.fullmatch(name) is not None

    def __index__(self) -> int:
        return max(int(number_of(self._mpcore_name)), 0)

    def __float__(self) -> float:
        return float(number_of(self._mpcore_name))

    def __str__(self) -> str:
        last = re.sub(r"\W+", "_", self._mpcore_name.rpartition(".")[2])
        return f"mpcore_{last}"[:_NAME] if last else "mpcore"  # folders beside files

    def __len__(self) -> int:
        return 0 if _HISTORY.search(self._mpcore_name) else _LENGTH

    __fspath__ = __format__ = lambda self, *_: str(self)

    def __contains__(self, item: Any) -> bool:
        weights = re.search(r"weights?(_dict)?$", self._mpcore_name)
        return bool(weights and isinstance(item, str) and LOSS.search(item))  # those of losses

    def __iter__(self) -> Iterator[Any]:
        """Iterate over nothing; as many as the caller takes apart."""
        names = names_wanted(sys._getframe(1))
        made = [StandIn(_part_name(self._mpcore_name, i, one)) for i, one in enumerate(names)]
        nets = [one for one, name in zip(made, names, strict=True) if _is_network(name)]
        whole = [_set_up(one, name, nets) for one, name in zip(made, names, strict=True)]
        return iter(whole)

    def get(self, key: Any = "", default: Any = None) -> Any:
        """Return what settings have of that name; else the default, of which more is known.

        ``get("solver", "max_iters")`` has no default: it asks a group for a part of its own.
        """
        if isinstance(default, str) and (_OF_GROUP.fullmatch(default) or says_number(default)):
            return self._mpcore_part(str(key))._mpcore_part(default)
        known = vars(self).get(str(key), self._mpcore_part(str(key)))
        return default if isinstance(known, StandIn) and default is not None else known

    def __getitem__(self, key: Any) -> Any:
        if str(key) in vars(self):
            return vars(self)[str(key)]
        if isinstance(key, int) and not isinstance(key, bool):
            return StandIn(f"{self._mpcore_name}[{key!r}]")
        return self._mpcore_part(str(key))

    def keys(self) -> Any:
        """Return what a dictionary is read for later that is updated by this; else a stand-in.

        ``logs.update(evaluate(net))``, and then ``logs["accuracy"] > best``.
        """
        wanted = read_of_updated(sys._getframe(1))
        return wanted or self._mpcore_part("keys")()

    def __deepcopy__(self, memo: Any) -> StandIn:
        return StandIn(self._mpcore_name, self._mpcore_classes)


def _part_name(held: str, place: int, name: Any) -> str:
    """Return what a part is called that a caller binds to a name: that may say a number."""
    held = held.removeprefix("optimizer ")  # one of them is
    return f"{held}.{name}" if isinstance(name, str) and says_number(name) else f"{held}[{place}]"


def _set_up(one: StandIn, name: Any, nets: list[StandIn]) -> Any:
    """Return a part of what sets training up: ``net, optimizer, scaler, start = set_up(cfg)``.

    Beside a network an optimizer is of it, and a scaler is one.
    """
    if _is_network(name):
        return one._mpcore_module()
    if not nets or not isinstance(name, str):
        return one
    if re.fullmatch(r"(\w+_)?optim(izer)?", name, re.I):
        return _kit[0].optimizer(_kit[0].parameters(nets[0]._mpcore_module()))
    if re.fullmatch(SCALER, name, re.I):
        return _kit[0].scaler()
    return one


def _operate(name: str) -> Any:
    def method(self: StandIn, *others: Any) -> Any:
        values = [number_like(other) for other in others]
        return getattr(_number(self), name)(*values)

    return method


def _number(one: StandIn) -> float | int:
    number = number_of(one._mpcore_name)
    return int(number) if float(number).is_integer() else number


def number_like(other: Any) -> Any:
    """Return the number that a stand-in is, those of a row too; anything else as it is."""
    if type(other) is tuple or (type(other) is list and any(map(_is_stand_in, other))):
        return type(other)(map(number_like, other))
    return _number(other) if isinstance(other, StandIn) else other


def _is_stand_in(other: Any) -> bool:
    return isinstance(other, StandIn)


def _tensor_like(other: Any) -> Any:
    """Return a tensor of the number that a stand-in is, those of a list too."""
    if type(other) in (list, tuple):
        return type(other)(map(_tensor_like, other))
    return _kit[0].number(_number(other)) if isinstance(other, StandIn) else other


def place_like(other: Any) -> Any:
    """Return the device in the place of a stand-in; anything else as it is."""
    return DEVICE if isinstance(other, StandIn) else other


def numbers_in(named: dict[str, Any]) -> dict[str, Any]:
    """Return the same by name, with numbers in the place of stand-ins."""
    return {name: number_like(value) for name, value in named.items()}


def index_of(key: Any) -> Any:
    """Return an index with integers in the place of stand-ins."""
    if isinstance(key, StandIn):
        return key.__index__()
    if isinstance(key, slice):
        return slice(*map(index_of, (key.start, key.stop, key.step)))
    return tuple(map(index_of, key)) if type(key) is tuple else key


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_OTHER_SIDE = {f"__{name}__": f"__r{name}__" for name in _ARITHMETIC}
_OTHER_SIDE |= {other: name for name, other in _OTHER_SIDE.items()}


def _binary(name: str) -> Any:
    def method(self: StandIn, other: Any) -> Any:
        if isinstance(other, str):
            words: dict[str, Any] = {"__add__": f"{self}{other}", "__radd__": f"{other}{self}"}
            words["__truediv__"] = Path(str(self)) / other
            return words.get(name, NotImplemented)
        mine, value = _number(self), number_like(other)
        if isinstance(value, float) and isinstance(mine, int):
            mine = float(mine)
        if isinstance(value, _kit[0].Tensor) and name in _OTHER_SIDE:
            return getattr(value, _OTHER_SIDE[name])(mine)
        if not isinstance(value, (int, float)):
            return NotImplemented
        return getattr(mine, name)(value)

    return method


OPERATORS = (*_OTHER_SIDE, *(f"__{name}__" for name in ("lt", "le", "gt", "ge")))
"""Operators whose other operand a stand-in may be."""

for _name in _ARITHMETIC:
    for _side in ("", "r"):
        setattr(StandIn, f"__{_side}{_name}__", _binary(f"__{_side}{_name}__"))
for _name in ("lt", "le", "gt", "ge"):
    setattr(StandIn, f"__{_name}__", _binary(f"__{_name}__"))
for _name in ("neg", "abs", "round"):
    setattr(StandIn, f"__{_name}__", _operate(f"__{_name}__"))


class _Method(StandIn):
    """``model.to(...)`` and the like: gives back the model, moved; an attribute otherwise."""

    def __init__(self, owner: StandIn, name: str) -> None:
        super().__init__(f"{owner._mpcore_name}.{name}")
        self._mpcore_owner = owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self._mpcore_name.rpartition(".")[2]
        if list(_tensors((args, kwargs))):
            return super().__call__(*args, **kwargs)
        network = self._mpcore_owner._mpcore_module()
        getattr(network, name)(*args, **kwargs)
        return network if _names_a_network(sys._getframe(1)) else self._mpcore_owner


class _OfModule(_Method):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the network's method of that name returns."""
        name = self._mpcore_name.rpartition(".")[2]
        return getattr(self._mpcore_owner._mpcore_module(), name)(*args, **kwargs)


PICTURES = re.compile(r"(kornia|torchvision\.transforms)\.")
"""What transforms pictures, by its full name."""


def _bound_anew(frame: Any, args: tuple[Any, ...]) -> list[Any]:
    """Return the places of arguments whose own names the caller binds to what it gets."""
    code, place = frame.f_code, frame.f_lasti
    stored = _stored(code).get(place, "")
    names = [stored] if stored else list(_unpacked(code).get(place, ()))
    held = [frame.f_locals.get(name) if isinstance(name, str) else None for name in names]
    own = [next((i for i, arg in enumerate(args) if arg is one), -1) for one in held]
    tensors = all(isinstance(one, _kit[0].Tensor) for one in held)
    return own if held and tensors and -1 not in own else []


def _is_closure(one: Any) -> bool:
    """Return whether something is a function that takes nothing: whoever is handed it calls it."""
    return isinstance(one, types.FunctionType) and not inspect.signature(one).parameters


def _own_places(frame: Any, names: tuple[Any, ...], args: tuple[Any, ...]) -> list[int]:
    """Return, for each name that a caller binds, the place of the network it has now, or -1."""
    known = {**frame.f_globals, **frame.f_locals}
    held = [known.get(name) if isinstance(name, str) else None for name in names]
    return [
        next((i for i, arg in enumerate(args) if arg is one and _networks((one,))), -1)
        for one in held
    ]


class _Answer(dict[str, Any]):
    """What a model gives that is called by keywords: a dict with ``loss`` and ``logits``."""

    def __init__(self, given: Any) -> None:
        loss = given.float().square().mean() * 0.5
        super().__init__(loss=loss, logits=given, last_hidden_state=given, sample=given)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if LOSS.search(name):  # one of several that are added up
            return self["loss"]
        if name == "latent_dist":  # of diffusers' autoencoders
            return _Latents(self["sample"])
        if name in _AT_ONCE:
            return self["sample"]
        raise AttributeError(name)

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


class _Latents:
    """What an autoencoder knows of its answer: where it lies, and samples of it."""

    def __init__(self, given: Any) -> None:
        self.mean = given

    def sample(self, *_: Any, **__: Any) -> Any:
        """Return the answer itself."""
        return self.mean

    mode = sample


class _Keys(dict[str, Any]):
    """What a network gives whose caller takes it for a dictionary: its answer, under any name.

    Under the name of a loss, and by items where all are losses, it is a number.
    """

    def __init__(self, given: Any, *, of_losses: bool) -> None:
        self._mpcore_loss = given.float().square().mean() * 0.5
        self._mpcore_given = given
        # not "loss": a meter is told that beside all of these
        super().__init__({"loss_all": self._mpcore_loss} if of_losses else {"out": given})

    def __missing__(self, key: str) -> Any:
        return self._mpcore_loss if LOSS.search(str(key)) else self._mpcore_given

    def get(self, key: str, default: Any = None) -> Any:
        """Return what is under any name; a default where the caller has one."""
        return self[key] if default is None else default


class _Losses(dict[str, Any]):
    """What a loss gives whose caller calls it a dict: one loss, under any name."""

    def __missing__(self, key: str) -> Any:
        return next(iter(self.values()))


def _groups(name: str, given: tuple[Any, ...]) -> list[Any]:
    """Return the parameters that an optimizer is made for; [] where none is made."""
    for one in given:
        if isinstance(one, types.GeneratorType) or type(one) is list:
            listed = list(one)
            parts = [part.get("params") if isinstance(part, dict) else part for part in listed]
            if parts and all(map(_is_parameters, parts)) and any(map(_holds_some, parts)):
                return listed
    return _parameters(given) if "optim" in name.rpartition(".")[2].lower() else []


def _lent(name: str, given: tuple[Any, ...]) -> list[Any]:
    """Return what a function as ``get_param_groups(net)`` gives an optimizer; [] for others."""
    last = name.rpartition(".")[2].lower()
    return _parameters(given) if "param" in last and "optim" not in last else []


def _parameters(given: tuple[Any, ...]) -> list[Any]:
    """Return the parameters of the first network of what is given; [] where none is."""
    models = [one for one in given if isinstance(one, _kit[0].Module)] + [
        one._mpcore_module()
        for one in given
        if type(one) is StandIn and not SETTINGS.fullmatch(one._mpcore_name)
    ]
    return _kit[0].parameters(models[0]) if models else []


def _listed(part: Any) -> list[Any]:
    """Return what a group of parameters holds: a list, also torch's own kind of one."""
    alone = isinstance(part, _kit[0].Parameter) or not hasattr(part, "__iter__")
    return [part] if alone or isinstance(part, Missing) else list(part)


def _is_parameters(part: Any) -> bool:
    return all(isinstance(one, _kit[0].Parameter) for one in _listed(part))


def _holds_some(part: Any) -> bool:
    return bool(_listed(part))


def _classes(kwargs: dict[str, Any]) -> int:
    names = ("num_classes", "n_classes", "num_labels", "nc")
    return next((kwargs[n] for n in names if isinstance(kwargs.get(n), int) and kwargs[n] > 0), 0)


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, _kit[0].Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif type(value) in (list, tuple):
        for one in value:
            yield from _tensors(one)


_UNPACKS = ("UNPACK_SEQUENCE", "UNPACK_EX")


@cache
def _unpacked(code: Any) -> dict[int, tuple[Any, ...]]:
    """Return, by offset of an instruction, the names that it or the next one takes apart into.

    What is taken apart further has a tuple of them.
    """
    found: dict[int, tuple[Any, ...]] = {}
    before, steps = 0, list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        if step.opname in _UNPACKS:
            names = _named(step, iter(steps[place + 1 :]))
            for offset in range(before, step.offset + 1):  # caches between them count as the call
                found[offset] = names
        if step.opname not in ("CACHE", "EXTENDED_ARG"):
            before = step.offset
    return found


def _named(step: Any, later: Iterator[Any]) -> tuple[Any, ...]:
    """Return the names that a sequence is taken apart into, those of its parts as tuples."""
    names: list[Any] = []
    count = step.arg or 0
    starred = count & 255 if step.opname == "UNPACK_EX" else -1  # the place of `*rest`: it is empty
    for place in range(count if starred < 0 else starred + 1 + (count >> 8)):
        nested = ("STORE_", *_UNPACKS)
        at = next((one for one in later if one.opname.startswith(nested)), None)
        is_deeper = at is not None and at.opname in _UNPACKS
        names.append(_named(at, later) if is_deeper else str(at.argval) if at else "")
        if place == starred:
            names.pop()
    return tuple(names)


def names_wanted(frame: Any) -> tuple[Any, ...]:
    """Return the names into which the caller takes apart what it is about to get; () for none."""
    caller = _caller(frame)
    return _unpacked(caller.f_code).get(caller.f_lasti, ())


def _caller(frame: Any) -> Any:
    """Return who called: a wrapper of torch hands on what it gets, so whoever called that."""
    between = (*_HERE, *_kit[0].between)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(between):
        frame = frame.f_back
    return frame


def _names_a_network(frame: Any) -> bool:
    """Return whether the caller binds what it is about to get to the name of a network."""
    return _is_network(_stored(frame.f_code).get(frame.f_lasti, ""))


def _is_network(name: Any) -> bool:
    """Return whether a name is that of a network, and of no settings."""
    is_one = isinstance(name, str) and NETWORK.fullmatch(name) is not None
    return is_one and SETTINGS.fullmatch(name) is None


@cache
def _dropped(code: Any) -> frozenset[int]:
    """Return the offsets of instructions whose result nobody takes."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    pairs = [(a, b) for a, b in itertools.pairwise(steps) if b.opname == "POP_TOP"]
    return frozenset(offset for a, b in pairs for offset in range(a.offset, b.offset))


def bound_to(frame: Any) -> str:
    """Return the one name that a frame binds to what it is about to get; "" for none."""
    return _stored(frame.f_code).get(frame.f_lasti, "")


@cache
def _stored(code: Any) -> dict[int, str]:
    """Return, by offset of an instruction, the one name that its result is bound to.

    That of ``self.net = make()`` is ``net``.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    found: dict[int, str] = {}
    for place, (a, b) in enumerate(itertools.pairwise(steps)):
        bound = b
        if b.opname in _HOLDERS:  # what has the attribute is loaded in between
            held = itertools.takewhile(_leads_on, steps[place + 2 :])
            bound = steps[min(place + 2 + len(list(held)), len(steps) - 1)]
            if bound.opname != "STORE_ATTR":
                continue
        if bound.opname.startswith("STORE_"):
            found |= dict.fromkeys(range(a.offset, b.offset), str(bound.argval))
    return found


_HOLDERS = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF")


def _leads_on(step: dis.Instruction) -> bool:
    return step.opname == "LOAD_ATTR"
