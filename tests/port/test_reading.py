"""What a pass has made is read as if all of it were: the same tree, in the same places."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import libcst as cst
import pytest

from mpcore_port import reading
from mpcore_port.children import below
from mpcore_port.engine import port_text
from mpcore_port.places import raw, spoken
from mpcore_port.reading import Rewritten, read
from mpcore_port.targets import Options, load_target

CASES = Path(__file__).parent / "cases"
SAMPLE = '''# A head.

# Of the first line.
import torch

@torch.jit.script  # of f
def f(a,
      b=1):
    """Doc."""
    for x in a:
        with torch.no_grad(): x += 1

        if x:
            return (x,
    b)  # further left
        elif b: pass
        else:
            # above g
            g(x)
            # behind g

            # at the end of the block
    # at the end of f
    y = 2; z = 3

    return y


class C(A):
    x: int = 1
    def g(self):
        try:
            raise E
        except E as e:
            print(e)
            # of the handler
        except B:
            pass
        else:
            x = """
  a text"""
        finally:
            done()
    # at the end of C

match f:
    case 1:
        one()
        two()
    case _:
        three()
# the last
'''
MARKED = "_kept0\nx = 1\n_kept0_\nif x:\n    y = 2\n    z = 3\n"
NEW = cst.parse_statement("# new\nnew = 1")


def _other(body, place):
    return [*body[:place], NEW, *body[place + 1 :]]


def _gone(body, place):
    return [*body[:place], *body[place + 1 :]] or [NEW]


def _twice(body, place):
    return [*body[: place + 1], *body[place:]]


def _moved(body, place):
    return [*body[:place], *body[place + 1 :], body[place]]


def _deeper(body, place):
    block = cst.If(cst.Name("deep"), cst.IndentedBlock([body[place]]))
    return [*body[:place], block, *body[place + 1 :]]


def _between(body, place):
    return [*body[:place], NEW, *body[place:]]


CHANGES = [_other, _gone, _twice, _moved, _deeper, _between]


def _put(names, old, new):
    """Return the module with ``new`` for ``old``; all that is not above it stays itself."""
    while old is not names.module:
        parent = names.parents[old]
        changes = {}
        for field in dataclasses.fields(parent):
            value = getattr(parent, field.name)
            if value is old:
                changes[field.name] = new
            elif isinstance(value, tuple) and any(one is old for one in value):
                changes[field.name] = [new if one is old else one for one in value]
        old, new = parent, parent.with_changes(**changes)
    return new


def _assert_read(made, whole):
    ours, theirs = list(below(made.module)), list(below(whole.module))
    assert made.code == whole.code
    assert made.module.deep_equals(whole.module)
    assert [made.positions[node] for node in ours] == [whole.positions[node] for node in theirs]
    assert [made.line(node) for node in ours] == [whole.line(node) for node in theirs]
    assert [spoken(node) for node in ours] == [spoken(node) for node in theirs]
    statements = [(raw(a), raw(b)) for a, b in zip(ours[1:], theirs[1:], strict=True)]
    assert all(a == b for a, b in statements)
    assert all(node in made.positions for node in ours)
    assert len({id(node) for node in ours}) == len(ours)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_module_is_read_as_its_text_is(change):
    before = read(SAMPLE)
    for block in [before.module, *before.names.by_type[cst.IndentedBlock]]:
        for place in range(len(block.body)):
            made = _made(before, block, change(list(block.body), place))
            _assert_read(made.read(), read(made.text))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_was_read_again_is_read_once_more(change):
    before = read(SAMPLE)
    made = _made(before, before.module, change(list(before.module.body), 1)).read()
    again = _made(made, made.module, change(list(made.module.body), 3))
    _assert_read(again.read(), read(again.text))
    once = again.read()
    last = _made(once, once.module, change(list(once.module.body), 0))
    _assert_read(last.read(), read(last.text))


@pytest.mark.parametrize("text", [SAMPLE.rstrip("\n"), MARKED], ids=["no line end", "marked"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_texts_of_other_kinds_are_read_alike(text, change):
    before = read(text)
    for place in range(len(before.module.body)):
        made = _made(before, before.module, change(list(before.module.body), place))
        _assert_read(made.read(), read(made.text))


def _made(before, block, body):
    """Return what a pass makes that changes one block."""
    module = _put(before.names, block, block.with_changes(body=body))
    made = Rewritten(before, module)
    assert made.text == module.code
    return made


def _parsed(monkeypatch):
    """Return a list that fills with the texts that are parsed."""
    texts = []
    parse = cst.parse_module
    monkeypatch.setattr(
        reading.cst, "parse_module", lambda text: (texts.append(text), parse(text))[1]
    )
    return texts


def _changed(text, place=-1):
    before = read(text)
    body = list(before.module.body)
    body[place] = NEW
    return Rewritten(before, before.module.with_changes(body=body))


def test_what_is_kept_is_not_parsed(monkeypatch):
    made = _changed("class A:\n    def f(self):\n        return 1\nx = 1\ny = 2\nz = 3\n")
    texts = _parsed(monkeypatch)
    made.read()
    assert [text.count("\n") for text in texts] == [3]  # a mark, and NEW with its comment


@pytest.mark.parametrize(
    "text",
    [
        "if a:\n    b\n    c\nx = 1\r\ny = 2\nz = 3\n",
        "if a:\n  b\nif c:\n    d\n    e\nx = 1\nz = 3\n",
        "x = 1\ny = 2\nz = 3\n\n  \n",
    ],
    ids=["two line ends", "two indents", "a tail"],
)
def test_where_libcst_might_read_a_part_otherwise_all_is_read(monkeypatch, text):
    made = _changed(text)
    texts = _parsed(monkeypatch)
    whole = made.read()
    assert made.text in texts
    assert whole.code + whole.tail == made.text


def test_a_comment_that_may_belong_to_a_kept_block_is_read_with_it():
    before = read("if a:\n    b\n    c\nx = 1\n")
    deep = cst.EmptyLine(comment=cst.Comment("# deep"), whitespace=cst.SimpleWhitespace("    "))
    block, line = before.module.body
    body = [block, line.with_changes(leading_lines=[deep])]
    made = Rewritten(before, before.module.with_changes(body=body)).read()
    assert made.module.body[0].body.footer[0].comment.value == "# deep"
    assert not made.module.body[1].leading_lines


@pytest.mark.parametrize("target", ["mindspore", "torch_npu"])
def test_a_rule_that_is_idle_would_have_done_nothing(monkeypatch, target):
    texts = [path.read_text() for path in sorted(CASES.glob(f"{target}/*/before.py"))[::4]]
    asked = [port_text(text, load_target(target)) for text in texts]
    for rule in (one for rules in load_target(target).passes(Options()) for one in rules):
        monkeypatch.setattr(type(rule), "idle", lambda self, at: False)
    for text, done in zip(texts, asked, strict=True):
        whole = port_text(text, load_target(target))
        assert (whole.text, whole.edits) == (done.text, done.edits)
