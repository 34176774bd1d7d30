"""Arguments that are seen when a script runs alone: ``F.softmax(x, *axes, **settings)``."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["by_signature"]

_PLAIN = (bool, int, float, str, tuple, list, type(None))


@cache
def _signature(takes: str) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, Any]]:
    """Return the names with a place, all names, and the defaults, of a signature as code."""
    args = ast.parse(f"def f({takes}): pass").body[0].args  # type: ignore[attr-defined]
    placed = tuple(one.arg for one in args.args)
    defaults = zip(placed[len(placed) - len(args.defaults) :], args.defaults, strict=True)
    named = ((one.arg, d) for one, d in zip(args.kwonlyargs, args.kw_defaults, strict=True))
    found = {name: ast.literal_eval(node) for name, node in (*defaults, *named) if node is not None}
    return placed, (*placed, *(one.arg for one in args.kwonlyargs)), found


def _is_default(value: Any, name: str, defaults: dict[str, Any]) -> bool:
    return name in defaults and isinstance(value, _PLAIN) and bool(value == defaults[name])


def _bound(name: str, takes: str, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
    """Return what a call gives, by torch's names."""
    placed, names, _ = _signature(takes)
    if len(args) > len(placed):
        msg = f"{name} takes {len(placed)} arguments by place at most, got {len(args)}"
        raise TypeError(msg)
    given = dict(zip(placed, args, strict=False))
    wrong = [one for one in settings if one in given or one not in names]
    if wrong:
        msg = f"{name} got `{wrong[0]}`, which it does not take, or has already"
        raise TypeError(msg)
    return given | settings


def by_signature(
    function: Callable[..., Any],
    takes: str,
    *,
    words: Mapping[str, str] | None = None,
    gone: str = "",
    kept: str = "",
    needed: str = "",
    missing: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
    made: Mapping[str, Any] | None = None,
    pinned: Mapping[str, Any] | None = None,
    always: Mapping[str, Any] | None = None,
    places: int = 99,
) -> Callable[..., Any]:
    """Return a function that takes torch's arguments and calls MindSpore's, or raises by name.

    Args:
        function: what is called.
        takes: torch's signature, as code.
        words: its names for arguments that torch calls otherwise.
        gone: names that say nothing in MindSpore.
        kept: names that must have torch's default.
        needed: names that must be given, and not as None.
        missing: functions with torch's arguments where a name is not given.
        given: functions with torch's arguments where a name has another value than torch's default;
            None where there is none.
        made: what an argument becomes.
        pinned: what stands for an argument that is not given; by "{other}" as another one.
        always: arguments that are always given.
        places: how many arguments may have a place.
    """
    words, made, name = words or {}, made or {}, getattr(function, "__qualname__", "it")

    def called(*args: Any, **settings: Any) -> Any:
        found = _bound(name, takes, args, settings)
        placed, _, defaults = _signature(takes)
        said = {*kept.split(), *(given or {}), *(n for n, d in defaults.items() if d is None)}
        found = {
            n: value
            for n, value in found.items()
            if n not in gone.split() and not (n in said and _is_default(value, n, defaults))
        }
        _check(name, found, kept, needed)
        for one, other in (missing or {}).items():
            if one not in found:
                return _other(name, one, other)(**found)
        for one, other in (given or {}).items():
            if one in found:
                return _other(name, one, other)(**found)
        for one, value in (pinned or {}).items():
            other = value[1:-1] if isinstance(value, str) and value[:1] == "{" else ""
            found.setdefault(one, found.get(other) if other else value)
        found = {n: made[n](value) if n in made else value for n, value in found.items()}
        front = []
        for one in placed[:places]:
            if one in defaults or one not in found:
                break
            front.append(found.pop(one))
        rest = {words.get(n, n): value for n, value in found.items()}
        return function(*front, **rest, **(always or {}))

    return called


def _check(name: str, found: dict[str, Any], kept: str, needed: str) -> None:
    wrong = [one for one in kept.split() if one in found]
    if wrong:
        msg = f"`{wrong[0]}` of {name} is not ported: leave it out"
        raise NotImplementedError(msg)
    lacking = [one for one in needed.split() if found.get(one) is None]
    if lacking:
        msg = f"`{lacking[0]}` of {name} must be given"
        raise NotImplementedError(msg)


def _other(name: str, argument: str, function: Any) -> Any:
    if function is None:
        msg = f"this `{argument}` of {name} is not ported where a class is made of it"
        raise NotImplementedError(msg)
    return function
