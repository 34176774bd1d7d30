"""What the calls of a graph ran in, heard one by one, beside what was planned for each."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch import fx

from mpcore.graph.ir import is_float
from mpcore.tools.inspection.trace import OpCall, widest
from mpcore_torch.graph_marks import HEARING, PLAN, RUNNER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from mpcore.graph.ir import GraphPlan, Node
    from mpcore.tools.inspection.dtypes import Dtypes

__all__ = ["hearing", "in_graphs"]


def in_graphs(model: nn.Module) -> tuple[str, ...]:
    """Return paths of the modules whose forward is their graphs."""
    return tuple(path for path, module in model.named_modules() if RUNNER in vars(module))


@contextlib.contextmanager
def hearing(calls: Dtypes, dtypes: Callable[[Any], tuple[str, ...]]) -> Iterator[None]:
    """Tell ``calls`` each call of the pieces that run; ``dtypes`` finds the floats of a value."""

    def run(code: Any, args: tuple[Any, ...]) -> Any:
        return _Heard(code, calls, dtypes).run(*args)

    HEARING.append(run)
    try:
        yield
    finally:
        HEARING.remove(run)


class _Heard(fx.Interpreter):  # type: ignore[misc]  # torch is not followed
    """Runs a piece call by call and tells the dtypes of each."""

    def __init__(self, code: Any, calls: Dtypes, dtypes: Callable[[Any], tuple[str, ...]]) -> None:
        super().__init__(code)
        self.calls, self.dtypes = calls, dtypes
        self.plan: GraphPlan | None = code.meta.get(PLAN)

    def run_node(self, n: fx.Node) -> Any:
        """Run one call and tell it; casts that the plan put in are told by what they feed."""
        node = None if self.plan is None else self.plan.graph.node.get(n.meta.get("mpcore", ""))
        if node is None or self.calls.in_function:
            return super().run_node(n)
        came = self.dtypes(self.fetch_args_kwargs_from_env(n))
        params = self._params(node)
        with self.calls.function(node.name, params) as kernels:
            result = super().run_node(n)
        name = node.name.removeprefix(f"{node.path}/")
        found, went = kernels.dtypes(), self.dtypes(result)
        planned, product = self._planned(node), bool(kernels.products)
        self.calls.called(
            OpCall(node.path, name, node.op, came, found, went, 1, params, product, planned)
        )
        return result

    def _params(self, node: Node) -> tuple[str, ...]:
        value = self.plan.graph.value  # type: ignore[union-attr]  # there is a node of it
        return tuple(name for name in node.inputs if value[name].kind == "param")

    def _planned(self, node: Node) -> tuple[str, str, str]:
        plan: Any = self.plan
        told = (found.get(node.name, "") for found in (plan.compute, plan.output))
        compute, output = ("" if dtype in ("native", "-") else dtype for dtype in told)
        if compute:  # a normalisation computes in the dtype of its parameters, which stay
            kept = (plan.graph.value[node.inputs[i]] for i in node.keeps)
            own = (value.dtype for value in kept if value.kind in ("param", "buffer"))
            compute = widest((compute, *filter(is_float, own)))
        return compute, output, plan.rules.get(node.name, "")
