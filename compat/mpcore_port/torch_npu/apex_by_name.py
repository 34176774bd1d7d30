"""``getattr(apex.optimizers, name)``: which of the fused optimizers is known when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from mpcore_port.names import code_of
from mpcore_port.torch_npu.plan import need_npu
from mpcore_port.torch_npu.tables import settings

if TYPE_CHECKING:
    from mpcore_port.rule import At, Rule

__all__ = ["MODULE", "by_name"]

MODULE = "apex.optimizers"
_NAME = "_port_apex_optimizers"
_CLASS = """
class {name}:
    \"\"\"torch's optimizers by the names and for the arguments of apex.optimizers.\"\"\"

    @staticmethod
    def FusedAdam(
        params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, adam_w_mode=True,
        weight_decay=0.0, amsgrad=False, set_grad_none=True, capturable=False, master_weights=False,
    ):
        if not bias_correction or amsgrad:
            raise NotImplementedError("torch's Adam always corrects the bias; apex has no AMSGrad")
        kind = {torch}.optim.AdamW if adam_w_mode else {torch}.optim.Adam
        return kind(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    @staticmethod
    def FusedSGD(
        params, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False,
        wd_after_momentum=False, materialize_master_grads=True, set_grad_none=False,
    ):
        if wd_after_momentum:
            raise NotImplementedError("torch's SGD decays the weights before the momentum")
        return {torch}.optim.SGD(
            params, lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
            nesterov=nesterov,
        )

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotImplementedError(f"apex.optimizers.{{name}}: FusedAdam and FusedSGD are ported")


{name} = {name}()
"""
_WHY = "which one is known when it runs"
_EFFECT = "rounding: one kernel against several; FusedAdam and FusedSGD are there, others raise"
_VALUE = "what is taken out of apex.optimizers is known when it runs"


def by_name(rule: Rule, old: Any, at: At) -> Any:
    """Return what stands for the module where something of it is chosen by name."""
    call = at.names.parents.get(at.names.parents.get(old))  # type: ignore[arg-type]
    asked = isinstance(call, cst.Call) and code_of(call.func) == "getattr" and len(call.args) > 1
    said = call.args[1].value if asked else None  # type: ignore[union-attr]
    if isinstance(said, cst.SimpleString):
        name = f"{MODULE}.{said.raw_value}"
        if name not in {row["name"] for row in settings()["apex"]}:
            advice = settings()["advice"]
            return at.refuse(rule, old, advice.get(name, advice["apex"]))
    if _NAME not in at.names.functions:
        at.preambles[_NAME] = _CLASS.format(name=_NAME, torch=at.name_of("torch", "torch"))
    need_npu(at)
    made = cst.Name(_NAME)
    if asked:
        at.note(rule, old, made, "changed", _WHY, _EFFECT)
    else:
        at.unproven(rule, old, f"{_VALUE}; {_EFFECT}", made)
    return made
