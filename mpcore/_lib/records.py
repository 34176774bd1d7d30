"""Frozen dataclasses as plain data and back, and the JSON schema of what is written.

A field holds ``str``, ``int``, ``float``, ``bool``, another dataclass, ``tuple[X, ...]``,
``dict[str, X]``, ``Any``, or one of these or None. Numbers that are not finite are the text
``"inf"``, ``"-inf"`` or ``"nan"``, so that JSON stays strict.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from dataclasses import Field

__all__ = ["APART", "from_plain", "schema", "to_plain"]

APART = {"apart": True}
"""Metadata of a field that is no part of the plain data."""

_Record = TypeVar("_Record")
_NOT_FINITE = ("inf", "-inf", "nan")
_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"anyOf": [{"type": "number"}, {"enum": list(_NOT_FINITE)}]},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    Any: {},
}


def to_plain(value: Any) -> Any:
    """Return plain data, ready for strict JSON: dicts, lists, text and finite numbers."""
    if is_dataclass(value):
        return {item.name: to_plain(getattr(value, item.name)) for item in _written(value)}
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def from_plain(kind: type[_Record], data: Any) -> _Record:
    """Return the dataclass that ``to_plain`` made ``data`` of; its defaults may be left out.

    Raises:
        ValueError: a field is missing or unknown, or holds something else; names the place.
    """
    found: _Record = _read(kind, data, kind.__name__)
    return found


def _read(kind: Any, data: Any, place: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if data is None else _read(_given(inner), data, place)
    if is_dataclass(kind):
        return _read_record(kind, data, place)
    if origin is tuple:
        items = _checked(list, data, place)
        return tuple(_read(inner[0], item, f"{place}[{i}]") for i, item in enumerate(items))
    if origin is dict:
        items = _checked(dict, data, place)
        return {name: _read(inner[1], item, f"{place}.{name}") for name, item in items.items()}
    if kind is float and data in _NOT_FINITE:
        return float(data)
    if kind is float and type(data) is int:
        return float(data)
    return data if kind is Any else _checked(kind, data, place)


def _read_record(kind: Any, data: Any, place: str) -> Any:
    given, hints = _checked(dict, data, place), get_type_hints(kind)
    names = {item.name: item for item in fields(kind)}
    missing = [name for name, item in names.items() if _needed(item) and name not in given]
    unknown = [name for name in given if name not in names]
    if missing or unknown:
        what = f"lacks `{missing[0]}`" if missing else f"has `{unknown[0]}`, which is no field"
        msg = f"{place} {what}"
        raise ValueError(msg)
    return kind(**{n: _read(hints[n], item, f"{place}.{n}") for n, item in given.items()})


def _checked(kind: Any, data: Any, place: str) -> Any:
    if type(data) is not kind:
        msg = f"{place} must be of type {kind.__name__}, got {data!r:.80}"
        raise ValueError(msg)
    return data


def _given(kinds: tuple[Any, ...]) -> Any:
    """Return the member of an optional type that is not None."""
    (kind,) = (kind for kind in kinds if kind is not NoneType)
    return kind


def _needed(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _written(kind: Any) -> list[Field[Any]]:
    return [item for item in fields(kind) if "apart" not in item.metadata]


# --- schema ---------------------------------------------------------------------------------


def schema(kind: Any, title: str) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of what ``to_plain`` makes of ``kind``."""
    known: dict[str, Any] = {}
    whole = _schema_of(kind, known)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**head, **whole, "$defs": dict(sorted(known.items()))}


def _schema_of(kind: Any, known: dict[str, Any]) -> dict[str, Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return {"anyOf": [_schema_of(one, known) for one in inner]}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(inner[0], known)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(inner[1], known)}
    if not is_dataclass(kind):
        return _SIMPLE[kind]
    name = getattr(kind, "__name__", "")
    if name not in known:
        known[name] = {}  # a record may hold its own kind
        known[name] = _record_schema(kind, known)
    return {"$ref": f"#/$defs/{name}"}


def _record_schema(kind: Any, known: dict[str, Any]) -> dict[str, Any]:
    hints, told = get_type_hints(kind), _told(kind)
    names = [item.name for item in _written(kind)]
    properties = {
        name: ({"description": told[name]} if name in told else {}) | _schema_of(hints[name], known)
        for name in names
    }
    return {
        "type": "object",
        "description": (kind.__doc__ or "").partition("\n")[0],
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


def _told(kind: Any) -> dict[str, str]:
    """Return what the docstrings of a dataclass and its bases say of each attribute."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, section = (base.__doc__ or "").partition("Attributes:\n")
        for name, text in re.findall(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", section, re.MULTILINE):
            found[name] = re.sub(r"\s+", " ", text).replace("``", "")
    return found
