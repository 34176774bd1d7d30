"""What stands in a step that was taken out of its script: batches, and modules that are missing."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.asked import only_asks
from mpcore_port.verify.inputs import draw, split_form
from mpcore_port.verify.roles import NETWORK, SETTINGS, flag_of, number_of, says_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "BATCHES",
    "VERSION",
    "Bar",
    "Batches",
    "Mapped",
    "Missing",
    "Record",
    "arrays",
    "first_of",
    "give",
    "missing",
    "parts_of",
    "passes_on",
    "rows",
]
__all__ += ["settings"]

BATCHES = 64
"""Batches that a loader gives; more than losses are recorded."""

VERSION = "9.99.0"
"""Of a package that is not there: new enough for what asks."""
_BYTES = 2**26  # of different batches; a float32[8,3,224,224] has 5 MB
_HOSTS = re.compile(r"prepare|setup_(dataloaders|optimizers|module)")
"""Methods of what hosts a loop, Accelerate or Fabric: they give back what they are handed."""
_COUNTED = ("trange", "tnrange")
_PASSES_ON = (
    *("tqdm", "track", *_COUNTED, "tqdm_notebook", "progress_bar", "progressbar"),
    *("master_bar", "alive_it"),  # of fastprogress, and alive_progress
)


class Batches(list[Any]):
    """A loader over synthetic batches: a list with what loops ask a ``DataLoader`` for."""

    drop_last = False
    num_workers = 0
    training = True
    name = "train"
    epoch_interval = 1

    def __getattr__(self, name: str) -> Any:
        """Return what stands for an attribute of a loader of one's own; ``hasattr`` finds none."""
        if name.startswith("_") or only_asks(sys._getframe(1)):
            raise AttributeError(name)
        return missing(f"loader.{name}")

    @property
    def dataset(self) -> Samples:
        """The batches themselves, with the length that their samples have."""
        return Samples(self)

    @property
    def sampler(self) -> Batches:
        """Itself: ``set_epoch`` is there."""
        return self

    batch_sampler = sampler

    def set_epoch(self, *_: Any, **__: Any) -> None:
        """Do nothing: batches come in one order, and nothing shows their progress."""

    set_description = set_postfix = set_postfix_str = set_description_str = set_epoch
    refresh = write = close = update = set_epoch

    @property
    def batch_size(self) -> int:
        """Length of the first tensor of a batch."""
        first = first_of(self[0])
        return int(first.shape[0])


class Samples(Batches):
    """What a loader goes over: as long as its samples, and more is asked of it."""

    def __len__(self) -> int:
        return super().__len__() * self.batch_size

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return missing(f"dataset.{name}")


class Record(types.SimpleNamespace):
    """A batch whose tensors are attributes, as those of torchtext are."""

    def __len__(self) -> int:
        """Return how many samples it has."""
        return len(first_of(self))

    def to(self, *args: Any, **kwargs: Any) -> Record:
        """Return the batch with its tensors moved."""
        return Record(**{key: _moved(value, args, kwargs) for key, value in vars(self).items()})


class Mapped(dict[str, Any]):
    """A batch whose tensors are items and attributes, and which is moved as a whole."""

    def __getattr__(self, name: str) -> Any:
        if name in self and not name.startswith("_"):
            return self[name]
        raise AttributeError(name)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batch with its tensors moved."""
        return type(self)({key: _moved(value, args, kwargs) for key, value in self.items()})

    def _same(self, *_: Any, **__: Any) -> Any:
        return self.to("cuda") if "torch" in sys.modules else self

    cuda = npu = _same

    def pin_memory(self) -> Any:
        """Return it as it is."""
        return self


def _moved(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_moved(one, args, kwargs) for one in value)
    if type(value) is dict:
        return {key: _moved(one, args, kwargs) for key, one in value.items()}
    return value.to(*args, **kwargs) if hasattr(value, "to") else value


def rows(held: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what each sample of a batch is: a dictionary, as what finds objects takes them."""
    count = len(first_of(held))
    return [{key: value[place] for key, value in held.items()} for place in range(count)]


def first_of(batch: Any) -> Any:
    """Return the first tensor of a batch."""
    if isinstance(batch, (dict, Record)):
        held = batch if isinstance(batch, dict) else vars(batch)
        return first_of(next(iter(held.values())))
    return first_of(batch[0]) if isinstance(batch, (tuple, list)) else batch


class Bar:
    """What a progress bar gives: what it is put around, and methods that do nothing.

    Args:
        held: what the bar goes over.
    """

    n = 0

    def __init__(self, held: Any) -> None:
        self._mpcore_held = held

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mpcore_held)

    def __len__(self) -> int:
        return len(self._mpcore_held)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def update(self, *_: Any, **__: Any) -> None:
        """Do nothing: nothing is shown."""

    set_description = set_postfix = set_postfix_str = set_description_str = update
    refresh = write = close = clear = reset = display = update

    def __getattr__(self, name: str) -> Any:  # master.child.comment, of bars in bars
        if name.startswith("_"):
            raise AttributeError(name)
        return missing(f"bar.{name}")


class _Base:
    """What a class has for a base that is not there: it takes the words of a class, too."""

    __slots__ = ()

    def __init_subclass__(cls, **words: Any) -> None:
        super().__init_subclass__()


class Missing:
    """Something that is not there, such as ``wandb``: takes every call and attribute, does nothing.

    As a decorator it gives back what it decorates, and arguments that a caller leaves to it;
    ``tqdm`` gives back what it is put around.
    """

    # apart from what ``**vars(settings)`` hands on
    __slots__ = ("__dict__", "__weakref__", "_mpcore_name")

    def __init__(self, name: Any = "value", *_: Any, **__: Any) -> None:
        # scripts make another of its kind, of whatever: type(batch)(x, label=y)
        self._mpcore_name: str = name if isinstance(name, str) else "value"

    def __repr__(self) -> str:
        return f"<not there: {self._mpcore_name}>"

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return VERSION
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._mpcore_name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return something else that is not there."""
        handed_on = passes_on(self._mpcore_name, args, kwargs)
        return Missing(self._mpcore_name) if handed_on is None else handed_on

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        first = next(one for one in bases if isinstance(one, Missing))
        others = [one for one in bases if isinstance(one, type)]
        held = first is not self or any(issubclass(one, _Base) for one in others)
        return () if held else (_Base,)

    def __instancecheck__(self, one: object) -> bool:
        """Return whether this, taken for a class, has made an object."""
        return isinstance(one, Missing) and one._mpcore_name == self._mpcore_name

    def __subclasscheck__(self, one: type) -> bool:
        return False

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> Missing:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def __getitem__(self, key: Any) -> Any:
        return Missing(f"{self._mpcore_name}[{key!r}]")

    def __setitem__(self, key: Any, value: Any) -> None:
        """Do nothing."""

    def __delitem__(self, key: Any) -> None:
        """Do nothing."""


def passes_on(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a decorator or a progress bar gives back; None if it is neither."""
    alone = len(args) == 1 and not kwargs
    if alone and isinstance(args[0], (types.FunctionType, type)):
        if name == "hydra.main":  # it calls the function with a configuration
            return functools.partial(args[0], missing("cfg"))
        return _filled(args[0]) if isinstance(args[0], types.FunctionType) else args[0]
    last = name.rpartition(".")[2]
    if args and not kwargs and _HOSTS.fullmatch(last):
        return args if len(args) > 1 else args[0]
    if args and last in _PASSES_ON:
        counted = last in _COUNTED or isinstance(args[0], int)
        held = range(*map(int, args)) if counted else args[0]
        return Bar(held) if isinstance(held, (range, enumerate, zip)) else held
    return None


def _filled(function: Any) -> Any:
    """Return a function that has settings, by their names, in the place of arguments not given.

    Decorators of fastargs, click, sacred and gin hand them over: ``@param("lr.momentum")``.
    """
    signature = inspect.signature(function)
    empty, named = inspect.Parameter.empty, (inspect.Parameter.POSITIONAL_OR_KEYWORD, _NAMED)
    wanted = [n for n, p in signature.parameters.items() if p.default is empty and p.kind in named]
    if not wanted or hasattr(function, "_mpcore_filled"):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind_partial(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)
        more = {name: _of_settings(name) for name in wanted if name not in given}
        return function(*args, **kwargs, **more)

    call._mpcore_filled = True  # type: ignore[attr-defined]  # by one of several decorators
    return call


_NAMED = inspect.Parameter.KEYWORD_ONLY


def _of_settings(name: str) -> Any:
    """Return what settings have of that name: a number, a flag, or something that is not there."""
    if SETTINGS.fullmatch(name):
        return missing(name)
    if flag_of(f"args.{name}"):
        return True
    if says_number(name):
        return number_of(name)
    return parts_of("args")(name)


def parts_of(name: str) -> Callable[[str], Any]:
    """Return what gives a setting by its name.

    Whoever calls it is looked at: whether what is read is read on.

    Args:
        name: what the settings are called.
    """
    held = missing(name)
    part = getattr(type(held), "_mpcore_part", None)
    return functools.partial(part, held) if part is not None else held.__getattr__


def missing(name: str, *, imported: bool = False) -> Missing:
    """Return what stands for something absent: a network too, beside torch or in a replay.

    Args:
        name: of what is absent.
        imported: whether it is a module: what is called of it may be a function of the data.
    """
    cells = "mpcore_port.mindspore.stand_in" in sys.modules
    if cells or ("torch" in sys.modules and "mindspore" not in sys.modules):
        from mpcore_port.verify.stand_in import StandIn

        return StandIn(name, imported=imported)
    return Missing(name)


def give(owner: Any, **values: Any) -> None:
    """Give an object attributes, as its base would; properties it has."""
    for name, value in values.items():
        if not isinstance(getattr(type(owner), name, None), property):
            setattr(owner, name, _as_network(name, value))


def _as_network(name: str, value: Any) -> Any:
    """Return the network that something absent is, under the name of one; others as they are."""
    is_one = NETWORK.fullmatch(name) is not None and SETTINGS.fullmatch(name) is None
    make = getattr(type(value), "_mpcore_module", None) if is_one else None
    return value if make is None else make(value)


def fill(owner: Any, **makers: Callable[[], Any]) -> None:
    """Give an object the attributes that it has not, each as its maker makes it."""
    for name, make in makers.items():
        if not (hasattr(type(owner), name) or hasattr(owner, name)):
            setattr(owner, name, _as_network(name, make()))


def settings(name: str, known: dict[str, Any]) -> Missing:
    """Return what stands for a script's settings, with those that are known."""
    made = missing(name)
    vars(made).update(known)
    return made


def arrays(text: str) -> list[tuple[Any, ...]]:
    """Return the arrays of ``BATCHES`` batches, as ``--inputs`` has them; large ones repeat."""
    text, form = split_form(text)
    if form:
        from mpcore_port.verify.stand_in import set_form

        set_form(form)
    (one,) = draw(text, 1)
    size = sum(array.nbytes for array in one)
    different = next(n for n in (64, 32, 16, 8) if n == 8 or n * size <= _BYTES)
    return draw(text, different) * (BATCHES // different)
