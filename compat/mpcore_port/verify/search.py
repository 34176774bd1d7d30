"""Find a batch of several tensors: change one after the other, and keep what comes further.

Names say what a tensor may be, errors say what size another one wants. How far a try came is the
line of the loop that it failed at, and the calls until then.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.inputs import FORMS, Input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Search", "by_name", "told"]

_BATCH, _FEW = 8, 2
_LENGTH, _FRAMES, _SIDE = 16, 8, 32
_AUDIO = _FRAMES * 256
_PICTURE = Input("float32", (_BATCH, 3, _SIDE, _SIDE))
_CLASS = Input("int64", (_BATCH,), 10)
_WORDS = Input("int64", (_BATCH, _LENGTH), 64)
_MAP = Input("int64", (_BATCH, _SIDE, _SIDE), 2)
_KINDS = (
    (r"mels?|mel_\w+|\w*spec(trogram)?s?", Input("float32", (_BATCH, 80, _FRAMES))),
    (r"\w*(audio|wave?(form)?|speech)s?|signal", Input("float32", (_BATCH, _AUDIO))),
    (r"\w*(out|mel|spec|audio|target)\w*_?len(gth)?s?", Input("int64", (_BATCH,), None, _FRAMES)),
    (r"\w*(lens?|lengths?)", Input("int64", (_BATCH,), None, _LENGTH)),
    (r"(\w*mask|png|seg|annotation|gt)s?", _MAP),
    (r"valid|weights?", Input("float32", (_BATCH, _SIDE, _SIDE), 2)),
    (r"flow|disp(arity)?", Input("float32", (_BATCH, 1, _SIDE, _SIDE))),
    (r"\w*(image|img|picture|input|sample|photo)s?\w*|x", _PICTURE),
    (r"(gate|stop)\w*", Input("float32", (_BATCH, _FRAMES), 2)),
    (r"att(entio)?n_\w+", Input("float32", (_BATCH, _FRAMES, _LENGTH), 2)),
    (r"(speaker|spk|sid|class)\w*", Input("int64", (_BATCH,), 1)),
    (r"\w*(text|token|ids?|src|trg|tgt|seq|word|sentence|caption|phoneme)s?\w*", _WORDS),
    (r"\w*(label|target|y|cls)s?", _CLASS),
    (r"times?|t|timesteps?|\w*step", _CLASS),
)
_ANY = (
    _PICTURE,
    _CLASS,
    _MAP,
    Input("float32", (_BATCH, _SIDE, _SIDE), 2),
    _WORDS,
    Input("float32", (_BATCH, _LENGTH)),
    Input("float32", (_BATCH,)),
    Input("float32", (_BATCH, 80, _FRAMES)),
    Input("float32", (_BATCH, _AUDIO)),
    Input("float32", (_BATCH, 1, _SIDE, _SIDE)),
)

_State = tuple[tuple[Input, ...], str]


def by_name(name: str, layers: Sequence[Input] = ()) -> Input:
    """Return what a tensor of that name may be; pictures are of the size that a layer wants."""
    last = re.sub(r"\[\d+\]$", "", name.rpartition(".")[2])
    found = next((kind for pattern, kind in _KINDS if re.fullmatch(pattern, last, re.I)), _PICTURE)
    return layers[0] if found is _PICTURE and layers else found


def told(error: str, items: Sequence[Input]) -> Iterator[tuple[Input, ...]]:
    """Yield batches that an error asks for."""
    sizes = re.search(
        r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", error
    )
    if sizes:
        for old, new in ((int(sizes[1]), int(sizes[2])), (int(sizes[2]), int(sizes[1]))):
            yield from _resized(items, old, new)
    channels = re.search(r"weight of size \[\d+, (\d+)([^]]*)\].* got (\d+) channels", error)
    if channels:
        dims = 2 + channels[2].count(",")
        yield from _resized(items, int(channels[3]), int(channels[1]), dims)
    rows = re.search(r"cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)", error)
    if rows:
        yield from _resized(items, int(rows[1]), int(rows[2]))
    wanted = re.search(r"values to unpack \(expected (\d+)(?:, got (\d+))?\)", error)
    if wanted:
        for place, item in enumerate(items):
            more = int(wanted[1]) - len(item.shape)
            if more == -1 and len(item.shape) > 2:
                yield _with(items, place, replace(item, shape=(item.shape[0], *item.shape[2:])))
            elif more == 1:
                yield _with(items, place, replace(item, shape=(item.shape[0], 1, *item.shape[1:])))
    if re.search(
        r"expected .*\bLong\b|scalar types?: Long|tensors used as indices|Expected.*int", error
    ):
        for place, item in enumerate(items):
            if item.dtype == "float32":
                yield _with(items, place, Input("int64", item.shape, 2))
    if re.search(r"out of (range|bounds)", error):
        for place, item in enumerate(items):
            if item.dtype == "int64" and (item.below or 0) > 2:
                yield _with(items, place, replace(item, below=2))


def _small(item: Input) -> Input:
    return replace(item, shape=(_FEW, *item.shape[1:]))


def _resized(
    items: Sequence[Input], old: int, new: int, dims: int = 0
) -> Iterator[tuple[Input, ...]]:
    for place, item in enumerate(items):
        if old in item.shape[1:] and (not dims or len(item.shape) >= dims):
            shape = (item.shape[0], *(new if size == old else size for size in item.shape[1:]))
            yield _with(items, place, replace(item, shape=shape))


def _with(items: Sequence[Input], place: int, item: Input) -> tuple[Input, ...]:
    return (*items[:place], item, *items[place + 1 :])


class Search:
    """A walk over batches, from what the names of their tensors say.

    Args:
        names: of the tensors.
        layers: what the first layers of a network take.
        stand_ins: networks that stand in so far: without one their form says nothing.
    """

    def __init__(
        self, names: Sequence[str], layers: Sequence[Input], stand_ins: Sequence[str] | set[str]
    ) -> None:
        self.state: _State = (
            tuple(by_name(name, layers) for name in names),
            FORMS[0] if stand_ins else "",
        )
        self.layers = list(layers[:3])
        self.done: set[str] = set()

    def run(
        self, attempt: Callable[[str], dict[str, Any]], is_spent: Callable[[], bool]
    ) -> dict[str, Any]:
        """Return what the last or the best try told; its ``text`` is the batch."""
        best = self._told(self.state, attempt)
        if best.get("stand_ins") and not self.state[1]:
            self.state = self.state[0], FORMS[0]
        if not (best.get("error") or best.get("enough") or is_spent()):  # it took too long
            self.state = tuple(map(_small, self.state[0])), self.state[1]
            best = self._told(self.state, attempt)
        going = True
        while going and not best.get("enough") and not is_spent():
            going = False
            for state in list(self._beside(best)):
                if is_spent() or best.get("enough"):
                    break
                if _text(state) in self.done:
                    continue
                found = self._told(state, attempt)
                if found.get("enough") or found["reach"] > best["reach"]:
                    best, self.state, going = found, state, True
                    break
        return best

    def _told(self, state: _State, attempt: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        self.done.add(_text(state))
        return {"reach": [0, 0], **attempt(_text(state)), "text": _text(state)}

    def _beside(self, best: dict[str, Any]) -> Iterator[_State]:
        items, form = self.state
        yield from ((one, form) for one in told(best.get("error", ""), items))
        if form:
            yield from ((items, other) for other in FORMS if other != form)
        for place in reversed(range(len(items))):
            for other in (*self.layers, *_ANY):
                few = items[place].shape[:1] == (_FEW,)
                yield _with(items, place, _small(other) if few else other), form


def _text(state: _State) -> str:
    items, form = state
    return ", ".join(map(str, items)) + (f" -> {form}" if form else "")
