"""What a backend can do with one kind of layer, and what a policy comes to where it cannot.

Data first (``mpcore.capabilities.known``), then what ``mpcore doctor`` measured here and kept
(``mpcore.capabilities.cache``), and only where neither answers, a probe: once per version and
device, in a process of its own.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mpcore._lib.machine import cpu_here
from mpcore._lib.versions import satisfies
from mpcore.backend.backend import Support, check_policy
from mpcore.capabilities.cache import measured
from mpcore.capabilities.known import KNOWN
from mpcore.errors import BackendError, MpcoreWarning
from mpcore.numerics.dtypes import is_low
from mpcore.policy.plan import resolve_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mpcore.backend.backend import Capabilities
    from mpcore.capabilities.known import Known
    from mpcore.policy.layer import Layer
    from mpcore.policy.plan import LayerPlan, Plan
    from mpcore.policy.policy import Policy

__all__ = ["Question", "answer", "honour", "known", "meaning_of_float32", "support"]

_REFUSED = ("wrong", "absent")


@dataclass(frozen=True)
class Question:
    """What is asked of a backend.

    Attributes:
        family: layer category, such as ``"conv"``; see ``mpcore.policy.layer.CATEGORIES``.
        dtype: ``"float16"``, ``"bfloat16"`` or ``"float32"``.
        by: mechanism: ``"op"``, ``"layer"`` or ``"model"``.
        type: the framework's class, such as ``"LSTM"``; ``""`` for the category as a whole.
        mode: ``"eager"``, ``"graph"``, ``"xla"``; ``""`` for the backend's own.
    """

    family: str
    dtype: str
    by: str = "layer"
    type: str = ""
    mode: str = ""


def known(
    can: Capabilities, asked: Question, flags: Sequence[str] | None, data: Sequence[Known] = KNOWN
) -> Known | None:
    """Return what is known of a question; None where nothing is.

    Args:
        can: which backend, device, versions and mode.
        asked: the question.
        flags: of the CPU; None where they are not known: then none is known to be missing.
        data: what is known at all.
    """
    device = can.device.partition(":")[0].lower()
    mode = asked.mode or can.mode
    for entry in data:
        if (
            (entry.backend, entry.device, entry.dtype) == (can.backend, device, asked.dtype)
            and (not entry.families or asked.family in entry.families)
            and (not entry.types or asked.type in entry.types)
            and (not entry.modes or mode in entry.modes)
            and (not entry.by or asked.by in entry.by)
            and _fits(entry.versions, can.versions)
            and (not entry.lacks or (flags is not None and not set(entry.lacks) & set(flags)))
        ):
            return entry
    return None


def _fits(bounds: Mapping[str, str], versions: Mapping[str, str]) -> bool:
    return all(name in versions and satisfies(versions[name], b) for name, b in bounds.items())


def support(
    can: Capabilities,
    family: str,
    dtype: str,
    by: str = "layer",
    *,
    type: str = "",
    mode: str = "",
) -> Support:
    """Return whether layers of a category can compute in ``dtype`` on a device, and why.

    Args:
        can: what a backend says of the device.
        family: layer category, such as ``"conv"``; see ``mpcore.policy.layer.CATEGORIES``.
        dtype: ``"float16"``, ``"bfloat16"`` or ``"float32"``.
        by: mechanism: ``"op"``, ``"layer"`` or ``"model"``.
        type: the framework's class, such as ``"LSTM"``; ``""`` for the category as a whole.
        mode: ``"eager"``, ``"graph"``, ``"xla"``; ``""`` for the backend's own.

    Examples:
        >>> from mpcore.backend.backend import load_backend
        >>> support(load_backend("numpy").capabilities(), "linear", "bfloat16").level
        'simulated'
    """
    return answer(can, Question(family, dtype, by, type, mode))


def answer(can: Capabilities, asked: Question, *, probe: bool = False) -> Support:
    """Return whether a backend can do something, and why.

    Args:
        can: what the backend says of its device.
        asked: the question.
        probe: whether to measure where nothing is known; see ``capabilities_cache.measured``.
    """
    if asked.dtype == "float32":
        return Support("native")
    mechanism = can.by.get(asked.by, Support("native"))
    if mechanism.level == "absent":
        return mechanism
    entry = known(can, asked, cpu_here()[1])
    if entry is not None:
        return Support(entry.level, entry.reason, entry.advice, entry.source)
    found = measured(can, asked.family, asked.dtype, probe=probe and _may_probe())
    return found or can.compute.get(asked.dtype, Support("absent", "no such format there"))


def _may_probe() -> bool:
    return os.environ.get("MPCORE_PROBE", "on") != "off"


# --- a policy, and what a model really has ------------------------------------------------------


def honour(
    policy: Policy,
    layers: Sequence[Layer],
    can: Capabilities,
    *,
    strict: bool = True,
    probe: bool = True,
) -> tuple[Plan, bool]:
    """Return the plan for a model, and whether something in it is simulated.

    Args:
        policy: the policy.
        layers: the model's layers.
        can: what the backend can.
        strict: whether to refuse what cannot be honoured. Otherwise an op list that is not
            there becomes by="layer", and a layer that would be absent, wrong, or simulated
            against ``simulation="refuse"`` stays float32; one warning says which, and the plan's
            rules say why. Master weights and optimizer states are never degraded.
        probe: whether to measure what nothing is known of; see ``support``.

    Raises:
        BackendError: the policy cannot be honoured; nothing was changed.
    """
    if strict:
        check_policy(policy, can)
        plan = resolve_plan(policy, layers, can.device)
        _refuse(plan, can, probe=probe)
        return plan, _simulates(plan, can)
    own, told = _by_layer(policy, can)
    _check_rest(own, can)
    plan = resolve_plan(own, layers, can.device)
    entries, kept = [], []
    for entry in plan.layers:
        lacks = _lacking(entry, own, can, probe=probe)
        if lacks is not None:
            reason = f"degraded: {lacks.level} in {can.backend} on {can.device}: {lacks.reason}"
            entry = _in_float32(entry, reason)
            kept.append(entry.path or "(model)")
        entries.append(entry)
    if kept:
        told.append(f"{', '.join(kept)} stay float32")
    if told:
        msg = f"the policy is not honoured as a whole: {'; '.join(told)} (see amp.plan)"
        warnings.warn(msg, MpcoreWarning, stacklevel=3)
    plan = replace(plan, layers=tuple(entries))
    return plan, _simulates(plan, can)


def _dtypes(entry: LayerPlan, policy: Policy) -> Iterator[str]:
    """Yield the 16-bit dtypes that a layer would compute in."""
    if entry.category == "container":
        return
    dtype = policy.compute if entry.compute == "op" else entry.compute
    if dtype in ("float16", "bfloat16"):
        yield dtype


def _support_of(
    entry: LayerPlan, dtype: str, policy: Policy, can: Capabilities, *, probe: bool
) -> Support:
    # A layer that a rule gives a dtype runs outside of the op lists.
    by = policy.by
    if by == "graph":  # the same kernels in other places
        has_lists = can.by.get("op", Support("absent")).level != "absent"
        by = "op" if has_lists else "layer"
    by = "layer" if by == "op" and entry.compute != "op" else by
    return answer(can, Question(entry.category, dtype, by, entry.type), probe=probe)


def _refuse(plan: Plan, can: Capabilities, *, probe: bool) -> None:
    for entry in plan.layers:
        for dtype in _dtypes(entry, plan.policy):
            found = _support_of(entry, dtype, plan.policy, can, probe=probe)
            if found.level in _REFUSED:
                advice = found.advice or f"keep it float32 with policy.full({entry.path!r})"
                msg = (
                    f"layer {entry.path!r}: {found.reason} ({_called(entry)}); {advice}, "
                    "or pass strict=False to prepare"
                )
                raise BackendError(msg)


def _called(entry: LayerPlan) -> str:
    article = "an" if entry.type[:1] in "AEIO" or entry.type == "LSTM" else "a"
    return f"{entry.path or 'the model'} is {article} {entry.type}"


def _lacking(entry: LayerPlan, policy: Policy, can: Capabilities, *, probe: bool) -> Support | None:
    for dtype in _dtypes(entry, policy):
        found = _support_of(entry, dtype, policy, can, probe=probe)
        refused = found.level == "simulated" and policy.simulation == "refuse"
        if found.level in _REFUSED or refused:
            return found
    return None


def _in_float32(entry: LayerPlan, reason: str) -> LayerPlan:
    param = "float32" if entry.param else ""
    output = entry.output if not entry.path else "float32"
    return replace(entry, param=param, compute="float32", output=output, rule=reason)


def _by_layer(policy: Policy, can: Capabilities) -> tuple[Policy, list[str]]:
    """Return ``policy`` by layer where the backend has no op lists for it, and what was said."""
    if policy.by != "op":
        return policy, []
    found = can.by["op"]
    if found.level != "absent" and is_low(policy.compute):
        found = answer(can, Question("linear", policy.compute, "op"))
    if found.level not in (*_REFUSED, "simulated") and policy.op_list in can.op_lists:
        return policy, []
    reason = found.reason or f"it has no {policy.op_list} op list"
    told = f"by='op' becomes by='layer' ({reason})"
    return replace(policy, by="layer", op_list="native"), [told]


def _check_rest(policy: Policy, can: Capabilities) -> None:
    """Refuse what is not degraded: master weights, optimizer states, rules of other kinds."""
    every = dict.fromkeys(can.compute, Support("native"))
    check_policy(policy, replace(can, compute=every))


def _simulates(plan: Plan, can: Capabilities) -> bool:
    dtypes = {plan.policy.output, *(d for e in plan.layers for d in (e.compute, e.output))}
    if plan.policy.by in ("op", "graph"):
        dtypes.add(plan.policy.compute)
    return any(can.compute[d].level == "simulated" for d in dtypes & set(can.compute))


def meaning_of_float32(policy: Policy, can: Capabilities) -> str:
    """Return in one sentence what float32 products are under ``policy`` on a device.

    Source: torch.backends of torch 2.13.0; device_context.ascend.op_precision of mindspore
    2.10.0; ``tf.config.experimental.enable_tensor_float_32_execution`` of TensorFlow 2.21.
    """
    device = can.device.partition(":")[0].lower()
    switches = {
        "cuda": "TF32 (10 bits after the point) in matmul and convolution",
        "gpu": "TF32 (10 bits after the point) in matmul and convolution",
        "npu": "HF32 in matmul and convolution",
        "ascend": "HF32 in matmul and convolution, and precision_mode",
    }
    if device not in switches:
        settings = (
            "" if policy.float32 == "strict" else ", unless the framework's settings lower it"
        )
        return f"float32={policy.float32!r} on {can.device}: products in IEEE float32{settings}"
    words = {
        "strict": f"{switches[device]} switched off: products in IEEE float32",
        "fast": f"{switches[device]} switched on",
        "native": f"{switches[device]} as the framework's settings say",
    }
    return f"float32={policy.float32!r} on {can.device}: {words[policy.float32]} (not run)"
