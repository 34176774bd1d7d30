"""Search for what a batch is made of: try one, see how far the step came, change one tensor.

Of all batches that were tried the one with which the step came furthest is changed next: how far is
counted in lines of the script and its modules, and in layers that were passed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.inputs import FORMS, Input, read_inputs, split_form
from mpcore_port.verify.repairs import Batch, changes
from mpcore_port.verify.roles import LOSS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Search", "by_name", "first_inputs", "targets"]

_BATCH, _SMALL = 8, 2
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
    (r"times?|t|timesteps?|\w*step|_+", _CLASS),
)
_SIDES = (32, 28, 64, 16, 224, 14, 8, 128, 96, 256)  # of pictures
_LENGTHS = (16, 8, 32, 64, 128, 256, 512, 100, 1000)  # of texts and signals
_ANYTHING = [  # where no first layer says it
    Input("float32", (_BATCH, 3, 32, 32)),
    Input("int64", (_BATCH, 16), 64),
    Input("float32", (_BATCH, 16)),
    Input("float32", (_BATCH, 1, 4096)),
]
_HOPELESS = 6  # tries that stop at what no batch mends
_SAME = 20  # tries, of several forms, that all stop with the same words, which say nothing of sizes
_OF_NO_SIZE = re.compile(r"^(KeyError|TypeError|AttributeError): ")
_NO_BATCH = re.compile(
    r"^(NameError|ImportError|ModuleNotFoundError|UnboundLocalError): |view size is not compatible|"
    r"missing \d+ required positional|got an unexpected keyword argument|"
    r"^AttributeError: (?!'(Tensor|tuple|list|dict|NoneType|int|float|str)' object)"
)
_PLAIN = "scores"  # the form without a word
_MAPS = re.compile(r"4D|linear mode|modes: nearest|indices for tensor of dimension [23]")
_SEEDS = 3  # kinds of batches that are tried before one is changed
_OF_A_FORM = 8  # tries with each form of a network's answers, before one goes on
_FEW = 90  # changes of one batch that are tried before the next best one is
_LABELS = re.compile(
    r"(\w+_)?(y|yb|labels?|targets?|lbls?|gt|truths?|classes|answers?|idx|ind(ex|ices)|ids?)(_\w+)?s?",
    re.I,
)
_WORD_NAMES = re.compile(
    r"(\w+_)?(tokens?|input_ids|text|src|trg|tgt|ids|phonemes?|sentences?)(_\w+)?", re.I
)
_PICTURES = re.compile(
    r"(\w+_)?(ims?|imgs?|images?|pictures?|frames?|lr|hr|pixels?)(_\w+|\d+)?", re.I
)
_EDGE_NAMES = re.compile(r"edge_?(index|list)|edges", re.I)
_MASKS = re.compile(r"(\w+_)?masks?(_\w+)?", re.I)
_NUMBERS = re.compile(r"(\w+_)?(len(gth)?s?|sizes?|counts?|num)(_\w+)?", re.I)


@dataclass
class _Tried:
    """A batch that was tried: how far the step came, whether it said something new, its changes."""

    far: int
    is_new: bool
    number: int
    changes: Iterator[Batch]
    left: int = _FEW
    is_over: bool = False


class Search:
    """One search.

    Args:
        job: as of ``probe``: ``names`` of the tensors of a batch, ``target``, ``count``, ``begin``.
        layers: kind and size of the first layers of the models.
        run: tries a batch, with a form of networks that are not there; returns what it told.
        is_over: asked before each try.
        is_large: whether the models are so large that batches are small from the first try.
    """

    def __init__(
        self,
        job: dict[str, Any],
        layers: list[list[Any]],
        run: Callable[[str], dict[str, Any]],
        is_over: Callable[[], bool],
        *,
        is_large: bool = False,
    ) -> None:
        self.names: list[str] = list(job.get("names") or [""] * job["count"])
        self.target: Any = job["target"]
        self.layers, self.run, self.is_over = layers, run, is_over
        self.rows = next((size for kind, size, _ in layers if kind == "Embedding"), 0)
        self.is_large = is_large
        begin = split_form(job.get("begin", ""))[0]
        self.begin: Batch = tuple(read_inputs(begin)) if begin else ()
        self.known: dict[str, dict[str, Any]] = {}
        self.best: dict[str, Any] = {}
        self.hopeless = False
        self.words: set[str] = set()

    def _says_no_size(self) -> bool:
        """Return whether all tries have stopped with the same words, that no batch changes."""
        return len(self.words) == 1 and all(map(_OF_NO_SIZE.search, self.words))

    def find(self) -> dict[str, Any]:
        """Return what the try told that ran, with its text as ``answer``; else the best one."""
        forms = ["", *(form for form in FORMS if form != _PLAIN)]
        for most in (_OF_A_FORM, None):
            came: dict[str, int] = {}
            left = list(forms)
            while left:
                form = left.pop(0)
                found = self._with_form(form, most)
                came[form] = found.get("far", -1)
                done = found.get("answer") or found.get("after")
                if done or self.hopeless or self.is_over() or not self.best.get("stand_ins"):
                    return found
                if _MAPS.search(self.best.get("error", "")):  # what is resized is no row of scores
                    left.sort(key=lambda form: form != "map")
            forms.sort(key=lambda form: -came[form])
        return self.best

    def _once(self, text: str) -> dict[str, Any]:
        """Return what a try tells; one is made for each text."""
        if text not in self.known:
            self.known[text] = self.run(text)
        return self.known[text]

    def _has_network(self) -> bool:
        """Return whether a network stands in: its answers may have another form."""
        names: list[str] = self.best.get("stand_ins") or []
        return any(not LOSS.search(name) for name in names)

    def _with_form(self, form: str, most: int | None = None) -> dict[str, Any]:
        """Search with one form of answers; ``most`` tries where a network stands in."""
        tail = f" -> {form}" if form else ""
        begin = len(self.known)
        furthest: dict[str, Any] = {}
        seen: set[Batch] = set()
        errors: set[tuple[int, str]] = set()
        waiting: list[_Tried] = []
        hopeless = 0
        seeds = self._seeds()
        while not self.is_over():
            tried = len(self.known) - begin
            if most is not None and tried >= most and self._has_network():
                return furthest
            batch = self._next(waiting, seeds, seen)
            if batch is None:
                break
            seen.add(batch)
            if self.is_large:
                small = tuple(map(_small, batch))
                if small != batch and small in seen:
                    continue
                batch = small
                seen.add(batch)
            text = ", ".join(map(str, batch)) + tail
            told = self._once(text)
            if not (told.get("error") or told.get("enough")):  # it took too long
                batch = tuple(map(_small, batch))
                seen.add(batch)
                text = ", ".join(map(str, batch)) + tail
                told = self._once(text)
            if told.get("enough"):
                return self._as_compared(batch, tail, {**told, "answer": text})
            if told.get("after"):  # no other batch mends what follows a step
                return {**told, "text": text}
            if _NO_BATCH.search(told.get("error", "")):
                hopeless += 1
                if told.get("far", 0) > self.best.get("far", -1):  # the likeliest came first
                    self._note({**told, "text": text})
                if hopeless >= _HOPELESS:
                    self.hopeless = True
                    return self.best
            self._note({**told, "text": text})
            self.words.add(told.get("error", ""))
            if len(self.known) >= _SAME and self._says_no_size():
                self.hopeless = True
                return self.best
            furthest = max(furthest, told, key=lambda one: one.get("far", -1))
            far, error = told.get("far", 0), told.get("error", "")
            kind = (far, re.sub(r"\d+", "", error))
            if kind in errors and len(waiting) >= _SEEDS:
                continue  # no further, and nothing new is said
            fresh = {**told, "layers": self.layers, "rows": self.rows}
            found = self._with_targets(
                batch, fresh, changes(error, batch, self._order(told), fresh)
            )
            waiting.append(_Tried(far, kind not in errors, len(waiting), found))
            errors.add(kind)
        return self.best if most is None else furthest

    def _as_compared(self, batch: Batch, tail: str, found: dict[str, Any]) -> dict[str, Any]:
        """Return what ran; with floats where a loss that compares numbers took whole ones."""
        asked = targets(found, batch[0]) if self.target is not None and found.get("loss") else []
        if not asked or asked[0].dtype == "int64" or batch[self.target].dtype != "int64":
            return found
        other = (*batch[: self.target], asked[0], *batch[self.target + 1 :])
        text = ", ".join(map(str, other)) + tail
        told = self._once(text)
        return {**told, "answer": text} if told.get("enough") else found

    def _note(self, told: dict[str, Any]) -> None:
        if told.get("error") and told.get("far", 0) >= self.best.get("far", -1):
            told["stand_ins"] = told.get("stand_ins") or self.best.get("stand_ins", [])
            self.best = told
        elif told.get("stand_ins"):
            self.best.setdefault("stand_ins", told["stand_ins"])

    def _next(
        self, waiting: list[_Tried], seeds: Iterator[Batch], seen: set[Batch]
    ) -> Batch | None:
        """Return what is tried next: some seeds, then a change of what came furthest."""
        for turn in ("early", "late"):
            if len(waiting) >= _SEEDS or turn == "late":
                for one in sorted(waiting, key=lambda one: (one.far, one.is_new, one.number))[::-1]:
                    while one.left:
                        one.left -= 1
                        batch = next(one.changes, None)
                        if batch is None:
                            one.left, one.is_over = 0, True
                        elif batch not in seen:
                            return batch
            batch = next((batch for batch in seeds if batch not in seen), None)
            if batch is not None:
                return batch
            for one in waiting:
                one.left = 0 if one.is_over else _FEW
        return None

    def _order(self, told: dict[str, Any]) -> list[int]:
        """Return places of tensors, those first that are likely to be wrong."""
        places = list(range(len(self.names)))
        if self.target is None:
            return places
        late = bool(told.get("loss"))
        return sorted(places, key=lambda place: (place == self.target) is not late)

    def _with_targets(
        self, batch: Batch, told: dict[str, Any], more: Iterator[Batch]
    ) -> Iterator[Batch]:
        """Yield batches with the targets that the loss asks for, then ``more``."""
        if self.target is not None and told.get("loss"):
            item = batch[0] if self.target else batch[-1]
            for one in targets(told, item):
                yield (*batch[: self.target], one, *batch[self.target + 1 :])
            if told["loss"].startswith("binary"):  # what goes in may be compared with as well
                yield (replace(item, below=2),) * len(batch)
        yield from more

    def _seeds(self) -> Iterator[Batch]:
        """Yield batches by what first layers take, and what the tensors are called."""
        if len(self.begin) == len(self.names):
            yield self.begin
        sizes = first_inputs(self.layers)
        named = tuple(by_name(name, sizes) for name in self.names)
        if len(self.names) > 1 and not sizes:  # names alone say something
            yield named
        for number, item in enumerate(sizes or _ANYTHING):
            yield tuple(self._named(place, item) for place in range(len(self.names)))
            if not number and len(self.names) > 1:
                yield named
        for item in _ANYTHING:
            yield tuple(self._named(place, item) for place in range(len(self.names)))
            yield (item,) * len(self.names)

    def _named(self, place: int, item: Input) -> Input:
        name = self.names[place].rpartition(".")[2]
        pictures = [size for kind, size, _ in self.layers if kind == "Conv2d"]
        if pictures and _PICTURES.fullmatch(name) and len(item.shape) < 4:
            return Input("float32", (_BATCH, pictures[0], 32, 32))
        if _EDGE_NAMES.fullmatch(name):
            return Input("int64", (2, 16), _BATCH)
        if place == self.target or (len(self.names) > 1 and _LABELS.fullmatch(name)):
            return Input("int64", (_BATCH,), 10)
        if _NUMBERS.fullmatch(name):
            return Input("int64", (_BATCH,), 2)
        if _WORD_NAMES.fullmatch(name) and self.rows:
            return Input("int64", (_BATCH, 16), self.rows)
        if _MASKS.fullmatch(name) and item.dtype == "int64":
            return Input("int64", item.shape, 2)
        return item


def _small(item: Input) -> Input:
    whole = item.shape[:1] == (_BATCH,)
    return replace(item, shape=(_SMALL, *item.shape[1:])) if whole else item


def by_name(name: str, layers: Sequence[Input] = ()) -> Input:
    """Return what a tensor of that name may be; pictures are of the size that a layer wants."""
    last = re.sub(r"\[\d+\]$", "", name.rpartition(".")[2])
    found = next((kind for pattern, kind in _KINDS if re.fullmatch(pattern, last, re.I)), _PICTURE)
    return layers[0] if found is _PICTURE and layers else found


def first_inputs(layers: list[list[Any]]) -> list[Input]:
    """Return what the first layers of a model may take, the likeliest first."""
    found: list[Input] = []
    for kind, size, _ in layers[:2]:
        if kind == "Conv2d":
            found += [Input("float32", (_BATCH, size, side, side)) for side in _SIDES]
        elif kind == "Conv1d":
            found += [Input("float32", (_BATCH, size, length)) for length in _LENGTHS]
        elif kind == "Conv3d":
            found += [Input("float32", (_BATCH, size, side, side, side)) for side in (16, 8, 32)]
        elif kind == "Embedding":
            found += [Input("int64", (_BATCH, length), size) for length in _LENGTHS]
            found.append(Input("int64", (_BATCH,), size))
        elif kind in ("Linear", "BatchNorm1d"):
            found.append(Input("float32", (_BATCH, size)))
            found += [Input("float32", (_BATCH, length, size)) for length in _LENGTHS[:3]]
            side = round(size**0.5)
            if side * side == size:  # a flattened picture
                found.append(Input("float32", (_BATCH, 1, side, side)))
        elif kind in ("LSTM", "GRU", "RNN", "LayerNorm"):
            if kind != "LayerNorm":  # rows of a square picture
                found += [Input("float32", shape) for shape in ((_BATCH, size, size),)]
            found += [Input("float32", (_BATCH, length, size)) for length in _LENGTHS[:4]]
    return found


def targets(seen: dict[str, Any], item: Input) -> list[Input]:
    """Return what the loss may compare with, by its kind and the shape of what it is given."""
    loss, out = seen.get("loss", ""), tuple(seen.get("out", ()))
    if not out:
        return []
    if loss in ("cross_entropy", "nll_loss"):
        return [Input("int64", shape, out[1]) for shape in _index_shapes(out, item)]
    below = 2 if loss.startswith("binary") else None
    shapes = dict.fromkeys([out, tuple(n for n in out if n != 1) or (_BATCH,), out[:1]])
    floats = [Input("float32", shape, below) for shape in shapes]
    if loss or len(out) < 2:
        return floats
    labels = [Input("int64", (out[0], *out[2:]), out[1])]
    if len(out) == 3 and item.dtype == "int64":  # scores of the words that follow
        labels.insert(0, Input("int64", out[:-1], out[-1]))
    return [*labels, *floats]


def _index_shapes(out: tuple[int, ...], item: Input) -> list[tuple[int, ...]]:
    """Return shapes of labels for ``out``, which may be flattened over time."""
    plain = (out[0], *out[2:])
    rows = item.shape[0] if item.shape else _BATCH
    if len(out) == 2 and out[0] > rows and out[0] % rows == 0:
        return [(rows, out[0] // rows), plain]
    return [plain]
