"""What a batch is: begun with what a script shows, changed where a try asks it for what it has not.

A tensor that is asked for an item by a word is a dictionary, one that is asked for an attribute
that no tensor has is an object, what is taken apart into three names has three parts. Tries have
batches that note what they are asked for; a try that stopped at one says how the batch changes.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.batches import Layout
from mpcore_port.verify.synthetic import Mapped, Missing, Record, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Ask", "Structure", "asked_by", "tracked", "watch"]

_LEAF = re.compile(r"torch\.from_numpy\(_mpcore_parts\[(\d+)\]\)(\.cuda\(\))?")
_HELD = re.compile(r"_mpcore_leaf_(\d+)\b")
_WORDS = ("split", "lower", "upper", "strip", "replace", "startswith", "endswith", "encode")
_OF_DICTS = ("items", "keys", "values", "pop", "get", "update", "setdefault")
_OF_LISTS = ("append", "extend", "insert")
_MOVES = ("to", "cuda", "npu", "pin_memory")
_KEPT = ("to", "view_as", "float", "long", "half", "contiguous", "clone", "detach")
_TEXT = "['a text of five words'] * 8"
_ANY = "x"  # the key of a dictionary of which nothing names one
_MOST = 16  # parts of one container


@dataclass(frozen=True)
class Ask:
    """What a part of a batch was asked for.

    Attributes:
        path: of the part: which loader, then the places that lead to it.
        kind: ``"key"``, ``"attr"``, ``"parts"``, ``"index"``, ``"items"``, ``"words"``,
            ``"rows"`` (of each sample, a key), or ``"moves"``.
        names: those that it was asked for.
    """

    path: tuple[int, ...]
    kind: str
    names: tuple[str, ...] = ()


@dataclass
class _Asked:
    """The last thing that was asked for, and the error that it raised."""

    ask: Ask | None = None
    error: BaseException | None = None
    maybe: list[Ask] = field(default_factory=list)
    mapped: list[tuple[tuple[int, ...], set[str]]] = field(default_factory=list)
    """Dictionaries that a script may have made others of, and their keys."""


_asked = _Asked()


def asked_by(exc: BaseException) -> Ask | None:
    """Return what a part of a batch was asked for where that is why a try stopped."""
    above: BaseException | None = exc
    while above is not None:
        if above is _asked.error:
            return _asked.ask
        above = above.__cause__ or above.__context__
    last = _asked.ask
    if last is not None and last.kind == "parts" and "unpack" in str(exc):
        return last
    if _asked.maybe and "NoneType" in str(exc):
        return _asked.maybe[-1]
    key = exc.args[0] if isinstance(exc, KeyError) and exc.args else None
    if _asked.mapped and isinstance(key, str):
        return Ask(_source_of(_container(exc), key), "key", (key,))
    return None


def _source_of(container: Any, key: str) -> tuple[int, ...]:
    """Return the path of what a dictionary without ``key`` was made of, by the keys it has."""
    known = [path for path, keys in _asked.mapped if key not in keys]
    if isinstance(container, dict):
        like = [path for path, keys in _asked.mapped if keys == set(container)]
        return like[0] if like else (known or [_asked.mapped[0][0]])[0]
    return (known or [_asked.mapped[0][0]])[-1]


def _container(exc: BaseException) -> Any:
    """Return what has no such item: ``batch["ego"]`` of ``batch["ego"]["mask"]``."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return None
    frame = trace.tb_frame
    first, last, begin, end = list(frame.f_code.co_positions())[trace.tb_lasti // 2]
    line = linecache.getline(frame.f_code.co_filename, first or 0).encode()
    if first != last or begin is None or end is None:
        return None
    try:
        node = ast.parse(line[begin:end].decode(), mode="eval").body
        held = node.value if isinstance(node, ast.Subscript) else None
        if held is None or any(isinstance(one, ast.Call) for one in ast.walk(held)):
            return None
        return eval(ast.unparse(held), frame.f_globals, frame.f_locals)
    except Exception:  # whatever the script's own objects raise
        return None


def _note(path: Any, kind: str, names: Sequence[str], error: BaseException) -> BaseException:
    _asked.ask, _asked.error = Ask(path, kind, tuple(names)), error
    return error


# --- what batches are ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Structure:
    """The batches of each loader as code, in which ``_mpcore_leaf_0`` is the first tensor.

    Attributes:
        texts: code, one for each loader.
        names: of all tensors.
        end: what places a tensor.
        olds: which tensor each was before the last change; -1 for a new one.
    """

    texts: tuple[str, ...]
    names: tuple[str, ...]
    end: str = ""
    olds: tuple[int, ...] = ()

    @classmethod
    def of(cls, codes: Sequence[str], names: Sequence[str]) -> Structure:
        """Return the structure that layouts have written down."""
        texts = tuple(_LEAF.sub(r"_mpcore_leaf_\1", code) for code in codes)
        end = ".cuda()" if any(").cuda()" in code for code in codes) else ""
        return cls(texts, tuple(names), end)

    @property
    def codes(self) -> list[str]:
        """The code of a batch of each loader, made of ``_mpcore_parts``."""
        made = rf"torch.from_numpy(_mpcore_parts[\1]){self.end}"
        return [_HELD.sub(made, text) for text in self.texts]

    @property
    def layouts(self) -> list[Layout]:
        """The same as layouts."""
        found, first = [], 0
        for text in self.texts:
            count = len(_HELD.findall(text))
            form = _HELD.sub("{}", text.replace("{", "{{").replace("}", "}}"))
            names = self.names[first : first + count]
            found.append(Layout("made", names, form, placed=bool(self.end)))
            first += count
        return found

    @property
    def target(self) -> int | None:
        """Which tensor the loss compares with."""
        first = len(_HELD.findall(self.texts[0])) if len(self.texts) > 1 else 0
        return Layout("tuple", self.names, first=first).target

    def changed(self, ask: Ask) -> Structure | None:
        """Return batches that have what was asked for; None where they have it, or cannot."""
        loader, *path = ask.path
        tree = ast.parse(self.texts[loader], mode="eval")
        fresh: list[str] = []

        def new(name: str) -> ast.expr:
            fresh.append(name)
            return ast.Name(f"_mpcore_new_{len(fresh) - 1}", ast.Load())

        if not _change(tree, path, ask, new):
            return None
        texts = [*self.texts]
        texts[loader] = ast.unparse(tree)
        if texts == [*self.texts]:
            return None
        names: list[str] = []
        olds: list[int] = []

        def numbered(found: re.Match[str]) -> str:
            is_new, number = found[1] == "new", int(found[2])
            names.append(fresh[number] if is_new else self.names[number])
            olds.append(-1 if is_new else number)
            return f"_mpcore_leaf_{len(names) - 1}"

        texts = [re.sub(r"_mpcore_(new|leaf)_(\d+)\b", numbered, text) for text in texts]
        if not names or len(names) > _MOST * 2 or not all(map(_HELD.search, texts)):
            return None
        return Structure(tuple(texts), tuple(names), self.end, tuple(olds))


def _change(
    tree: ast.Expression, path: Sequence[int], ask: Ask, new: Callable[[str], ast.expr]
) -> bool:
    """Change the part at ``path``; return whether that can be done."""
    above: ast.AST = tree
    node: ast.expr = tree.body
    for place in path:
        above, node = node, _children(node)[place]
    made = _made(node, ask, new)
    if made is None:
        return False
    if isinstance(above, ast.Expression):
        above.body = made
        return True
    held = _inside(above)
    if isinstance(held, ast.Dict):
        held.values[path[-1]] = made
    elif isinstance(held, ast.Call):
        held.keywords[path[-1]].value = made
    else:
        held.elts[path[-1]] = made
    return True


def _inside(node: ast.AST) -> Any:
    """Return the dictionary in what maps, or has rows."""
    around = isinstance(node, ast.Call) and ast.unparse(node.func) in (_MAPPED, _ROWS)
    return node.args[0] if around else node  # type: ignore[attr-defined]


_MAPPED, _ROWS, _RECORD = "_mpcore_mapped", "_mpcore_rows", "_mpcore_record"


def _children(node: ast.expr) -> list[ast.expr]:
    held = _inside(node)
    if isinstance(held, ast.Dict):
        return held.values
    if isinstance(held, ast.Call):
        return [one.value for one in held.keywords]
    return list(getattr(held, "elts", ()))


def _pairs(node: ast.AST) -> dict[str, ast.expr]:
    """Return what a part has by name."""
    held = _inside(node)
    if isinstance(held, ast.Dict):
        keys = [str(ast.literal_eval(key)) for key in held.keys if key is not None]
        return dict(zip(keys, held.values, strict=False))
    if isinstance(held, ast.Call):
        return {str(one.arg): one.value for one in held.keywords}
    return {}


def _called(name: str, inside: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), [inside], [])


def _mapping(pairs: dict[str, ast.expr]) -> ast.Dict:
    return ast.Dict([ast.Constant(name) for name in pairs], [*pairs.values()])


def _made(node: ast.expr, ask: Ask, new: Callable[[str], ast.expr]) -> ast.expr | None:
    """Return a part that has what was asked for; None where it cannot."""
    pairs = _pairs(node)
    fresh = [name for name in ask.names if name not in pairs]
    if ask.kind == "words":
        return ast.parse(_TEXT, mode="eval").body
    if ask.kind == "moves":
        return _called(_MAPPED, _mapping(pairs)) if pairs else None
    if ask.kind == "items":
        return _mapping({_ANY: new(_ANY)})
    if ask.kind in ("parts", "index"):
        held = list(getattr(node, "elts", ()))
        count = len(ask.names)
        more = [new(name) for name in ask.names[len(held) :]]
        return ast.List([*held[:count], *more], ast.Load()) if count <= _MOST else None
    if len(pairs) + len(fresh) > _MOST or not fresh:
        return None
    if list(pairs) == [_ANY]:  # a name that nothing had said
        inner = pairs.pop(_ANY)
        pairs = {} if isinstance(inner, ast.Name) else {fresh.pop(0): inner}
    pairs |= {name: new(name) for name in fresh}
    of = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    if ask.kind == "rows" or of == _ROWS:
        return _called(_ROWS, _mapping(pairs))
    if ask.kind == "key":
        return _called(of, _mapping(pairs)) if of == _MAPPED else _mapping(pairs)
    if isinstance(node, ast.Dict) or of == _MAPPED:
        return _called(_MAPPED, _mapping(pairs))
    keywords = [ast.keyword(name, value) for name, value in pairs.items()]
    return ast.Call(ast.Name(_RECORD, ast.Load()), [], keywords)


# --- batches that note what they are asked for --------------------------------------------------


def tracked(code: str, loader: int, held: dict[str, Any]) -> Any:
    """Return the batch that ``code`` makes, which notes what it is asked for and has not."""
    return _tracked(ast.parse(code, mode="eval").body, (loader,), held)


def _tracked(node: ast.expr, path: tuple[int, ...], held: dict[str, Any]) -> Any:
    text = ast.unparse(node)
    parts = [_tracked(one, (*path, i), held) for i, one in enumerate(_children(node))]
    of = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Dict) or of == _MAPPED:
        made: Any = (_Mapped if of else _Dict)(zip(_pairs(node), parts, strict=True))
    elif of == _RECORD:
        made = _Record(**dict(zip(_pairs(node), parts, strict=True)))
    elif of == _ROWS:
        return [_Dict.at(path, one) for one in rows(dict(zip(_pairs(node), parts, strict=True)))]
    elif isinstance(node, (ast.List, ast.Tuple)):
        made = (_List if isinstance(node, ast.List) else _Tuple)(parts)
    else:
        made = eval(compile(ast.Expression(node), text, "eval"), held)
    if hasattr(made, "__dict__") and not isinstance(made, type):
        vars(made)["_mpcore_path"] = path
    return made


class _Looked(dict[str, Any]):
    _mpcore_path: tuple[int, ...]

    def __missing__(self, key: Any) -> Any:
        error = KeyError(key)
        raise _note(self._mpcore_path, "key", [key], error) if isinstance(key, str) else error

    def get(self, key: Any, default: Any = None) -> Any:
        if key not in self and isinstance(key, str) and default is None:
            _asked.maybe.append(Ask(self._mpcore_path, "key", (key,)))
        return super().get(key, default)


class _Dict(_Looked):
    @classmethod
    def at(cls, path: tuple[int, ...], held: dict[str, Any]) -> _Dict:
        made = cls(held)
        vars(made)["_mpcore_path"] = path
        return made

    def __getattr__(self, name: str) -> Any:
        error = AttributeError(f"'dict' object has no attribute {name!r}")
        if name.startswith("_"):
            raise error
        raise _note(self._mpcore_path, "moves" if name in _MOVES else "attr", [name], error)

    def items(self) -> Any:
        _asked.mapped.append((self._mpcore_path, set(self)))
        return super().items()

    def keys(self) -> Any:
        _asked.mapped.append((self._mpcore_path, set(self)))
        return super().keys()


class _Mapped(_Looked, Mapped):
    def to(self, *args: Any, **kwargs: Any) -> Any:
        made = super().to(*args, **kwargs)
        vars(made).update(vars(self))
        return made

    def __getattr__(self, name: str) -> Any:
        if name in self and not name.startswith("_"):
            return self[name]
        return _Dict.__getattr__(self, name)  # type: ignore[arg-type]


class _Record(Record):
    def __getattr__(self, name: str) -> Any:
        error = AttributeError(name)
        if name.startswith("_"):
            raise error
        path = vars(self).get("_mpcore_path", (0,))
        kind, names = ("items", []) if name in _OF_DICTS else ("attr", [name])
        raise _note(path, kind, names, error)

    def __getitem__(self, key: Any) -> Any:
        error = TypeError("an object has no items")
        raise _note(self._mpcore_path, "key", [key], error) if isinstance(key, str) else error


class _List(list[Any]):
    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except (TypeError, IndexError) as exc:
            raise _of_item(self._mpcore_path, key, exc) from None

    def __getattr__(self, name: str) -> Any:
        error = AttributeError(f"'list' object has no attribute {name!r}")
        raise error if name.startswith("_") else _note(self._mpcore_path, "attr", [name], error)

    def __iter__(self) -> Any:
        _note_parts(self._mpcore_path, len(self), sys._getframe(1))
        return super().__iter__()


class _Tuple(tuple[Any, ...]):
    _mpcore_path: tuple[int, ...]
    __getattr__ = _List.__getattr__

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except (TypeError, IndexError) as exc:
            raise _of_item(self._mpcore_path, key, exc) from None

    def __iter__(self) -> Any:
        _note_parts(self._mpcore_path, len(self), sys._getframe(1))
        return super().__iter__()


def _of_item(path: Any, key: Any, error: Exception) -> BaseException:
    if isinstance(key, str):
        return _note(path, "key", [key], error)
    key = key.__index__() if isinstance(key, Missing) and hasattr(key, "__index__") else key
    if isinstance(key, int) and 0 <= key < _MOST:
        return _note(path, "index", [f"part{i}" for i in range(key + 1)], error)
    return error


def _note_parts(path: Any, count: int, frame: Any) -> None:
    """Note that something is taken apart into more, or fewer, names than it has parts."""
    from mpcore_port.verify.stand_in import names_wanted

    names = names_wanted(frame)
    if names and len(names) != count:
        listed = [name if isinstance(name, str) else f"part{i}" for i, name in enumerate(names)]
        _asked.ask, _asked.error = Ask(path, "parts", tuple(listed)), None


def watch(torch: Any) -> None:
    """Have the tensors of batches note what they are asked for, in this process."""
    kind = torch.Tensor
    item, each, fill = kind.__getitem__, kind.__iter__, kind.__setitem__

    def getitem(self: Any, key: Any) -> Any:
        if not isinstance(key, str):
            try:
                return item(self, key)
            except (IndexError, TypeError) as exc:
                path = vars(self).get("_mpcore_path")
                if path is None or not isinstance(key, Missing):
                    raise
                raise _of_item(path, key, exc) from None
        error = IndexError(f"a tensor has no item {key!r}")
        held = vars(self)
        if "_mpcore_path" in held:
            _note(held["_mpcore_path"], "key", [key], error)
        elif "_mpcore_row_of" in held:
            _note(held["_mpcore_row_of"], "rows", [key], error)
        raise error

    def setitem(self: Any, key: Any, value: Any) -> None:
        path = vars(self).get("_mpcore_path")
        if not isinstance(key, str) or path is None:
            fill(self, key, value)
            return
        raise _note(path, "items", [], IndexError(f"a tensor has no item {key!r}"))

    def getattribute(self: Any, name: str) -> Any:
        error = AttributeError(f"'Tensor' object has no attribute {name!r}")
        held = vars(self)
        path = held.get("_mpcore_path") or held.get("_mpcore_row_of")
        if name.startswith("_") or path is None:
            raise error
        if name in _WORDS:
            raise _note(path, "words", [], error)
        if "_mpcore_path" not in held or name in _OF_LISTS:
            raise error
        raise _note(path, *(("items", []) if name in _OF_DICTS else ("attr", [name])), error)

    def iterate(self: Any) -> Any:
        path = vars(self).get("_mpcore_path")
        if path is None:
            return each(self)
        _note_parts(path, len(self), sys._getframe(1))
        found = list(each(self))
        for one in found:
            vars(one)["_mpcore_row_of"] = path
        return iter(found)

    kind.__getitem__, kind.__getattr__, kind.__iter__ = getitem, getattribute, iterate
    kind.__setitem__ = setitem
    for name in _KEPT:
        setattr(kind, name, _keeping(getattr(kind, name)))


def _keeping(method: Any) -> Any:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = method(self, *args, **kwargs)
        held = vars(self)
        for name in ("_mpcore_path", "_mpcore_row_of"):
            if name in held and made is not self:
                vars(made)[name] = held[name]
        return made

    return call
