"""What stands where a port has no equivalent: code that raises, with the reason, when it is met."""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of

if TYPE_CHECKING:
    from mpcore_port.names import Names
    from mpcore_port.rule import At

__all__ = ["REFUSED", "STUB", "asks_at_once", "checked", "parses", "quoted"]

REFUSED = "_mpcore_refused"
_ASKED = (
    "__call__ __bool__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__",
    "__str__ __repr__ __format__ __int__ __float__ __index__ __len__ __iter__ __contains__",
    "__getitem__ __setattr__ __enter__ __exit__ __add__ __radd__ __mul__ __rmul__ __mod__",
)
STUB = f'''
class {REFUSED}:
    """Stands where the port has no equivalent; raises, with the reason, as soon as it is used."""

    def __init__(self, reason):
        self.__dict__["reason"] = reason

    def _raise(self, *args, **kwargs):
        raise NotImplementedError(self.__dict__["reason"])

    def __getattr__(self, name):
        if name.startswith("__") and name not in ("__name__", "__qualname__"):
            raise AttributeError(name)
        self._raise()

    def __mro_entries__(self, bases):
        return (type("{REFUSED}_base", (), {{"__new__": self._raise}}),)

{"".join(f"    {' = '.join(names.split())} = _raise{chr(10)}" for names in _ASKED)}'''
"""The class in a port; what a value can be asked raises, so that no answer is a wrong one."""

_QUESTIONS = (
    cst.Comparison,
    cst.ComparisonTarget,
    cst.BooleanOperation,
    cst.UnaryOperation,
    cst.FormattedStringExpression,
    cst.Return,
    cst.Yield,
)
_TESTS = (cst.If, cst.While, cst.IfExp, cst.Assert, cst.CompIf)
_HOLDERS = (cst.Assign, cst.AnnAssign, cst.NamedExpr, cst.Arg)


def asks_at_once(node: cst.CSTNode, names: Names) -> bool:
    """Return whether a refused name has to raise where it stands, not where it is used.

    ``is None`` asks a value nothing that it could refuse to answer. Names of classes are handed
    on, and so is what lies in a table: they raise where they are used.
    """
    parent = names.parents.get(node)
    if isinstance(parent, _QUESTIONS):
        return True
    if isinstance(parent, _TESTS) and parent.test is node:
        return True
    if isinstance(parent, cst.Assign) and _is_only_looked_into(parent, names):
        return False
    last = code_of(node).rpartition(".")[2]
    return isinstance(parent, _HOLDERS) and last[:1].islower() and not _is_base(parent, names)


def _is_only_looked_into(statement: cst.Assign, names: Names) -> bool:
    """Return whether all that is done with what is assigned is calling it, or taking its parts."""
    targets = [target.target for target in statement.targets]
    if not all(isinstance(target, cst.Name) for target in targets):
        return False
    bound = {target.value for target in targets if isinstance(target, cst.Name)}
    for node, parent in names.parents.items():
        if not isinstance(node, cst.Name) or node.value not in bound or node in targets:
            continue
        part = isinstance(parent, cst.Attribute) and parent.value is node
        called = isinstance(parent, cst.Call) and parent.func is node
        if not (part or called or isinstance(parent, (cst.Attribute, cst.Arg))):
            return False
        if isinstance(parent, cst.Arg) and parent.keyword is not node:
            return False
    return True


def _is_base(node: cst.CSTNode, names: Names) -> bool:
    return isinstance(names.parents.get(node), cst.ClassDef)


def quoted(text: str, node: cst.CSTNode, names: Names) -> str:
    """Return ``text`` as a literal that may stand at ``node``: in an f-string, without its quotes.

    Before Python 3.12 an f-string's braces hold neither its own quote nor a backslash or ``#``.
    """
    plain = text.replace("\\", "/").replace('"', "'")
    around = [a for a in names.ancestors(node) if isinstance(a, cst.FormattedString)]
    if not around:
        return f'"{plain}"'
    free = {'"', "'"} - {string.quote[:1] for string in around}
    quote = min(free) if free else '"'
    return quote + plain.replace("'", "").replace("#", "no. ") + quote


# --- a statement that a rule has made is parsed by itself ---------------------------------------


def parses(code: str) -> str:
    """Return why code is no Python, "" if it is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's script
            ast.parse(code)
    except SyntaxError as exc:
        return exc.msg
    except (ValueError, RecursionError, MemoryError) as exc:
        return str(exc)
    return ""


def checked(old: Any, new: Any, at: At) -> Any:
    """Return ``new``, or where it is no Python what raises in the place of ``old``."""
    parts = list(new) if isinstance(new, cst.FlattenSentinel) else [new]
    broken = next((why for why in map(_broken, parts) if why), "")
    if not broken:
        return new
    if len(parts) == 1 and not _broken(other := parts[0].visit(_Quotes())):
        return other
    shown = " ".join(_header(old).split()).rstrip(":")
    reason = f"what the port would write here is no Python ({broken}); write it in simpler steps"
    _forget(old, at)
    call = cst.Call(at.refusal(old, f"{shown}: {reason}"))
    at.refused(old, call, reason)
    if isinstance(old, cst.SimpleStatementLine):
        lines = [*new.leading_lines] if isinstance(new, cst.SimpleStatementLine) else []
        return old.with_changes(body=[cst.Expr(call)], leading_lines=lines or old.leading_lines)
    return _stopped(old, new, call)


class _Quotes(cst.CSTTransformer):
    """Gives texts inside of an f-string the quotes that it leaves free, as before Python 3.12."""

    def __init__(self) -> None:
        super().__init__()
        self._around: list[str] = []

    def visit_FormattedString(self, node: cst.FormattedString) -> None:  # noqa: N802
        """Come into an f-string."""
        self._around.append(node.quote[:1])

    def leave_FormattedString(self, original_node: Any, updated_node: Any) -> Any:  # noqa: N802
        """Leave an f-string; one inside of another gets other quotes."""
        self._around.pop()
        quote = updated_node.quote
        if quote not in self._around:
            return updated_node
        free = {'"', "'"} - set(self._around)
        inside = "".join(map(code_of, updated_node.parts))
        if len(free) != 1 or (other := free.pop()) in inside:
            return updated_node
        return updated_node.with_changes(start=f"{updated_node.prefix}{other}", end=other)

    def leave_SimpleString(self, original_node: Any, updated_node: Any) -> Any:  # noqa: N802
        """Change the quotes of one text."""
        free = {'"', "'"} - set(self._around)
        plain = updated_node.raw_value
        if len(free) != 1 or updated_node.prefix or re.search(r"[\\\n'\"]", plain):
            return updated_node
        quote = free.pop()
        return updated_node.with_changes(value=f"{quote}{plain}{quote}")


def _broken(node: Any) -> str:
    if not isinstance(node, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
        return ""
    return parses(_header(node))


def _header(node: Any) -> str:
    """Return the code of a statement, of a compound one without its body."""
    if isinstance(node, cst.SimpleStatementLine):
        return code_of(node.with_changes(leading_lines=[]))
    if isinstance(node, cst.Match):
        cases = [case.with_changes(body=_empty()) for case in node.cases]
        return code_of(node.with_changes(leading_lines=[], cases=cases))
    if isinstance(node, (cst.Try, cst.TryStar)):
        handlers = [h.with_changes(body=_kept(h.body), leading_lines=[]) for h in node.handlers]
        changes = {"body": _kept(node.body), "handlers": handlers, "orelse": None}
        final = cst.Finally(_empty()) if node.finalbody is not None else None
        return code_of(node.with_changes(leading_lines=[], finalbody=final, **changes))
    changes = {"leading_lines": [], "body": _kept(node.body)}
    if hasattr(node, "orelse"):
        changes["orelse"] = None
    return code_of(node.with_changes(**changes))


def _kept(body: Any) -> Any:
    """Return a body that stands in the line of its header, for others an empty one."""
    return body if isinstance(body, cst.SimpleStatementSuite) else _empty()


def _empty() -> cst.SimpleStatementSuite:
    return cst.SimpleStatementSuite([cst.Pass()])


def _stopped(old: Any, new: Any, call: cst.Call) -> Any:
    """Return a compound statement whose header raises; what its rules made of the body stays."""
    body = old.body if hasattr(old, "body") and _is_line(old.body) else getattr(new, "body", None)
    if isinstance(old, (cst.If, cst.While)):
        return new.with_changes(test=call, body=body)
    if isinstance(old, cst.For):
        return new.with_changes(target=old.target, iter=call, body=body)
    if isinstance(old, cst.With):
        items = [cst.WithItem(call, asname=item.asname) for item in old.items[:1]]
        return new.with_changes(items=items, body=body)
    if isinstance(old, cst.FunctionDef):
        return new.with_changes(
            params=old.params, returns=old.returns, decorators=[cst.Decorator(call)], body=body
        )
    if isinstance(old, cst.ClassDef):
        return new.with_changes(
            bases=old.bases, keywords=old.keywords, decorators=[cst.Decorator(call)], body=body
        )
    if isinstance(old, cst.Match):
        cases = [a.with_changes(body=b.body) for a, b in zip(old.cases, new.cases, strict=True)]
        return new.with_changes(subject=call, cases=cases)
    handlers = [
        a.with_changes(body=b.body) for a, b in zip(old.handlers, new.handlers, strict=True)
    ]
    return new.with_changes(handlers=handlers, body=_empty().with_changes(body=[cst.Expr(call)]))


def _is_line(body: Any) -> bool:
    return isinstance(body, cst.SimpleStatementSuite)


def _forget(old: Any, at: At) -> None:
    """Take back the edits in a statement's lines, of a compound one in those of its header."""
    first, last = at.line(old), at.last_line(old)
    body = getattr(old, "body", None)
    if isinstance(body, cst.IndentedBlock) and body.body:
        last = at.line(body.body[0]) - 1
    at.edits[:] = [edit for edit in at.edits if not first <= edit.line <= max(first, last)]
