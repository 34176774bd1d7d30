"""The text of a policy, and its JSON and TOML documents, taken apart.

    TEXT   = HEAD (";" RULE)*
    HEAD   = NAME | FIELDS | NAME "," FIELDS
    FIELDS = FIELD "=" VALUE ("," FIELD "=" VALUE)*     a VALUE has commas inside of brackets only
    RULE   = ["default "] a rule, see mpcore.policy.rule

Such as ``mixed_float16, loss_scale=dynamic(init_scale=8, patience=3); full path=*.head``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpcore.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PolicyText", "check_length", "read_object", "read_text"]

_LONGEST = 20_000  # characters of a policy's text; a long one has some hundred
_COMMA = re.compile(r",(?![^(]*\))")
_DEFAULT = "default "


@dataclass(frozen=True)
class PolicyText:
    """The parts of a policy's text, none of them judged yet.

    Attributes:
        name: the policy that it begins with; ``""`` if none.
        fields: values by the names of their fields.
        defaults: texts of rules behind the word ``default``.
        rules: texts of the other rules.
    """

    name: str
    fields: dict[str, str]
    defaults: list[str]
    rules: list[str]


def read_text(text: str) -> PolicyText:
    """Return the parts of a policy's text.

    Raises:
        PolicyError: it has not the form above.
    """
    head, *rules = (part.strip() for part in text.split(";"))
    pieces = [piece.strip() for piece in _COMMA.split(head) if piece.strip()]
    if not pieces:
        msg = f"`policy` must begin with a name or a field=value pair, got {head!r:.80}"
        raise PolicyError(msg)
    name = "" if "=" in pieces[0].split("(")[0] else pieces.pop(0)
    fields = {}
    for piece in pieces:
        field, equals, value = (part.strip() for part in piece.partition("="))
        if not equals:
            msg = f"`policy` must be a name, then field=value pairs, then rules, got {head!r}"
            raise PolicyError(msg)
        fields[field] = value
    return PolicyText(
        name,
        fields,
        [rule.removeprefix(_DEFAULT) for rule in rules if rule.startswith(_DEFAULT)],
        [rule for rule in rules if rule and not rule.startswith(_DEFAULT)],
    )


def check_length(text: object, kind: str = "") -> str:
    """Return a text from anywhere if it is one, of bounded length.

    Raises:
        PolicyError: it is no text, or a very long one.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        msg = f"`policy` must be a {kind}text of at most {_LONGEST} characters, got {text!r:.80}"
        raise PolicyError(msg)
    return text


def read_object(loads: Callable[[str], Any], text: object, kind: str) -> dict[str, Any]:
    """Return the object that a JSON or TOML document holds.

    Raises:
        PolicyError: it is no such document, or holds something else.
    """
    document = check_length(text, f"{kind} ")
    try:
        data = loads(document)
    except (ValueError, RecursionError) as exc:
        msg = f"`policy` must be a {kind} document: {exc}"
        raise PolicyError(msg) from exc
    if not isinstance(data, dict):
        msg = f"`policy` must be a {kind} object, got {type(data).__name__}"
        raise PolicyError(msg)
    return data
