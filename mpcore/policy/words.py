"""Users' words: what other libraries call a policy, as our own policy texts.

``words.toml`` is the table. Everything here turns text into text, so that a word is always said
back as the policy it became.
"""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING

from mpcore.errors import PolicyError
from mpcore.numerics.dtypes import dtype_of, is_low, parse_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AMBIGUOUS",
    "WORDS",
    "cast_all",
    "check_word",
    "is_jmp",
    "meant",
    "read_jmp",
    "translate",
]

_TABLE = tomllib.loads(files("mpcore.policy").joinpath("words.toml").read_text("utf-8"))

WORDS: dict[str, str] = _TABLE["lightning"] | _TABLE["accelerate"]
"""Policy texts by users' words, in lower case."""

AMBIGUOUS: dict[str, list[str]] = _TABLE["ambiguous"]
"""Words that mean nothing without their library's name, and what they may mean."""

_JMP_KEYS = {"p": "params", "c": "compute", "o": "output"}


def translate(text: str) -> str:
    """Return a policy's text with a user's word at its head replaced; other texts as they are.

    Raises:
        PolicyError: the word means different things, or something that nobody can honour.

    Examples:
        >>> translate("bf16; full *.head"), translate("16-mixed, by=layer")
        ('mixed_bfloat16; full *.head', 'torch:autocast, by=layer')
        >>> translate("p=f32,c=bf16,o=f32")
        'compute=bfloat16, inputs=cast; default lower layer=*'
    """
    head, semicolon, rules = text.partition(";")
    if is_jmp(head):
        lost: list[str] = []
        head = read_jmp(head, lost)
        if lost:
            msg = f"`policy` cannot say {'; '.join(lost)}, got {text!r:.80}"
            raise PolicyError(msg)
        return head + semicolon + rules
    name, comma, changes = head.partition(",")
    return _meaning(name.strip()) + comma + changes + semicolon + rules


def _meaning(word: str) -> str:
    check_word(word)
    dtype = dtype_of(word)
    if dtype is not None:
        return f"mixed_{dtype}" if is_low(dtype) else dtype
    return WORDS.get(word.lower(), word)


def check_word(word: object) -> None:
    """Refuse a word that is no policy although users of other libraries type it.

    Raises:
        PolicyError: with the choices, or the reason.
    """
    if isinstance(word, str) and word in AMBIGUOUS:
        choices = ", ".join(repr(choice) for choice in AMBIGUOUS[word])
        msg = f"`policy` {word!r} means another thing in each framework: choose from {choices}"
        raise PolicyError(msg)
    reason = _TABLE["absent"].get(str(dtype_of(word) or word).lower())
    if reason is not None:
        msg = f"`policy` {word!r} cannot be honoured: {reason}"
        raise PolicyError(msg)


def meant(name: object, known: Iterable[str]) -> str | None:
    """Return which of ``known`` differs from ``name`` in spelling alone: case, signs, fp16, bf16.

    Examples:
        >>> meant("Mixed-BF16", ["mixed_bfloat16", "apex:O1"]), meant("apex:o1", ["apex:O1"])
        ('mixed_bfloat16', 'apex:O1')
    """
    wanted = _plain(name)
    return next((choice for choice in known if _plain(choice) == wanted), None)


def _plain(name: object) -> str:
    text = re.sub(r"[\s_\-.]", "", str(name).lower())
    for short, long in (("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")):
        text = text.replace(short, long)
    return text


def is_jmp(text: str) -> bool:
    """Return whether a text is one of jmp's: ours has ``param=`` and no short keys."""
    keys = {piece.partition("=")[0].strip() for piece in text.split(",") if "=" in piece}
    return not keys.isdisjoint(("params", *_JMP_KEYS))


def read_jmp(text: str, lost: list[str]) -> str:
    """Return the policy of a jmp text such as ``params=float32,compute=float16``, as our text.

    Source: ``jmp.get_policy`` of jmp 0.0.4: three dtypes, or one for all; everything is cast.

    Args:
        text: the jmp text.
        lost: takes a line for each thing that has no counterpart.
    """
    parts = dict.fromkeys(("params", "compute", "output"), text.strip())
    if "=" in text:
        parts = dict.fromkeys(parts, "float32")
        for piece in filter(None, (piece.strip() for piece in text.split(","))):
            key, equals, value = (word.strip() for word in piece.partition("="))
            key = _JMP_KEYS.get(key, key)
            if not equals or key not in parts:
                msg = (
                    "`native` must look like 'params=float32,compute=float16,output=float32' "
                    f"(jmp), got {text!r:.80}"
                )
                raise PolicyError(msg)
            parts[key] = value
    param, compute, output = (
        parse_dtype("float32" if value == "full" else value, key) for key, value in parts.items()
    )
    return cast_all(param, compute, output, lost)


def cast_all(param: str, compute: str, output: str, lost: list[str]) -> str:
    """Return the text of the policy in which all layers run in ``compute``, none protected."""
    if output not in ("float32", compute):
        lost.append(f"output={output} (the output is float32 or {compute})")
        output = compute
    if compute == "float32":
        if is_low(param):
            lost.append(f"parameters in {param} (they are float32 when compute is)")
        return "float32"
    fields = [f"compute={compute}"] + ([f"output={output}"] if output != "float32" else [])
    if param != "float32":
        if param != compute:
            lost.append(f"parameters in {param} (they are float32 or {compute})")
        fields = [f"param={compute}", *fields, "by=model", "loss_scale=none"]
    return f"{', '.join(fields)}, inputs=cast; default lower layer=*"
