"""Functions that ask each other, in circles: least answers, and how often each is asked."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from mpcore_port.fixpoint import LeastFixpoint

from .ports import ported

GRAPHS = st.integers(1, 9).flatmap(
    lambda n: st.tuples(
        st.lists(st.lists(st.integers(0, n - 1), max_size=4), min_size=n, max_size=n),
        st.sets(st.integers(0, n - 1)),
        st.permutations(range(n)),
    )
)


@given(GRAPHS)
def test_least_answers_do_not_depend_on_where_a_circle_is_entered(graph: tuple) -> None:
    calls, true, order = graph
    answers = LeastFixpoint()

    def reaches(one: int) -> bool:
        return answers.ask(one, lambda: one in true or any(map(reaches, calls[one])), least=False)

    def all_from(one: int) -> frozenset[int]:
        seen: set[int] = set()
        todo = [one]
        while todo:
            here = todo.pop()
            if here not in seen:
                seen.add(here)
                todo += calls[here]
        return frozenset(seen)

    assert [reaches(one) for one in order] == [bool(all_from(one) & true) for one in order]


def test_the_cost_is_questions_times_rounds() -> None:
    asked: Counter[int] = Counter()
    answers = LeastFixpoint()

    def of(one: int) -> frozenset[int]:
        def answer() -> frozenset[int]:
            asked[one] += 1
            return frozenset({one}).union(*(of(other) for other in range(12)))

        return answers.ask(one, answer, least=frozenset())

    assert of(0) == frozenset(range(12))
    assert max(asked.values()) <= 4  # 12! ways lead through the circle
    before = asked.total()
    assert of(7) == frozenset(range(12))
    assert asked.total() == before  # settled with the rest


def test_functions_that_all_call_each_other_are_ported() -> None:
    ways = 8
    functions = "".join(
        f"def f{one}(x, y):\n    z = y + "
        + " + ".join(f"f{k}(y, x)" for k in range(ways))
        + "\n    return z * x\n"
        for one in range(ways)
    )
    script = f"""import torch
net = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
{functions}
def train(x, y):
    opt.zero_grad()
    loss = f0(net(x), f1(x, y)).mean()
    loss.backward()
    opt.step()
train(torch.ones(2, 3), torch.ones(2, 3))
"""
    assert "value_and_grad" in ported(script).text  # by every way it would take hours
