"""A method that is replaced in classes that others wrote."""

from __future__ import annotations

import pytest

from mpcore._lib.in_classes import InClasses


def family():
    class Base:
        heard = ()

        def __init_subclass__(cls, **given):
            super().__init_subclass__()
            cls.heard = (*cls.heard, *given)

        def move(self):
            return ["base"]

    class Own(Base, first=1):
        def move(self):
            return ["own", *super().move()]

    class Heir(Own):
        pass

    return Base, Own, Heir


def told(own):
    def move(self):
        return [f"asked {type(self).__name__}", *own(self)]

    return move


def test_classes_of_now_and_of_later_and_everything_is_put_back():
    base, own, heir = family()
    before = [dict(vars(kind)) for kind in (base, own, heir)]
    hook = InClasses(base, "move", told)
    hook.begin()
    hook.begin()
    assert base().move() == ["asked Base", "base"]
    assert heir().move() == ["asked Heir", "own", "asked Heir", "base"]

    class Later(own, second=2):
        def move(self):
            return ["later"]

    assert Later().move() == ["asked Later", "later"]
    assert Later.heard == ("first", "second")
    hook.end()
    hook.end()
    assert [dict(vars(kind)) for kind in (base, own, heir)] == before
    assert Later().move() == ["later"]
    hook.begin()
    assert heir().move()[0] == "asked Heir"
    hook.end()


def test_a_class_that_takes_no_arguments_refuses_them_still():
    class Base:
        def move(self):
            return []

    hook = InClasses(Base, "move", told, but=lambda kind: kind.__name__ == "Spared")
    hook.begin()

    class Spared(Base):
        def move(self):
            return ["spared"]

    assert Spared().move() == ["spared"]
    with pytest.raises(TypeError):
        type("Sub", (Base,), {}, nonsense=1)
    hook.end()
    assert "__init_subclass__" not in vars(Base)
