"""The update of float32 master values in one pass: opened, moved, stored, by one C kernel.

The kernel moves what it was seen to move as the optimizer does, bit for bit (``update_proof``):
Adam, AdamW and SGD of torch, on a CPU, in their common form. All else is the optimizer's own work,
in the same step: other variants and layouts, and the first step, which makes the slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import increment_version

from mpcore.capabilities.compiled import LEAST, UnavailableError, warn_uncompiled
from mpcore.errors import BackendError
from mpcore_torch.rounding import key_of
from mpcore_torch.update import has_hooks
from mpcore_torch.update_jobs import Job, scheme_of, table_of, threads_for
from mpcore_torch.update_kernels import kernel
from mpcore_torch.update_proof import root_that_fits
from mpcore_torch.update_rules import KINDS, Rule, numbers_of, rule_of, steps_itself

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mpcore.policy.policy import Policy
    from mpcore_torch.master_state import MasterState

__all__ = ["OnePass", "Pass"]

_LEAST = LEAST
_LANES = 16  # what is left over of its vectors a fused kernel of torch rounds in other ways
_PLAIN = (torch.Tensor, nn.Parameter)


class Pass:
    """What the kernel does of one step of an optimizer.

    Attributes:
        arguments: what the kernel is called with.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        jobs: dict[nn.Parameter, Job],
        by_master: Mapping[nn.Parameter, MasterState],
    ) -> None:
        self._optimizer, self._jobs, self._by_master = optimizer, jobs, by_master
        found = list(jobs.values())
        self._table = table_of(found)
        self.arguments = (self._table.ctypes.data, len(found), threads_for(found))
        self._written = [part for job in found for part in job.written]
        self._lists = [group["params"] for group in optimizer.param_groups]

    def hide(self) -> None:
        """Let the optimizer have the other parameters alone."""
        for group, params in zip(self._optimizer.param_groups, self._lists, strict=True):
            group["params"] = [param for param in params if param not in self._jobs]

    def show(self) -> None:
        """Let it have all again."""
        for group, params in zip(self._optimizer.param_groups, self._lists, strict=True):
            group["params"] = params

    def finish(self) -> None:
        """Do what is left when the kernel has run; called again after a fault, all of it anew."""
        self.show()
        increment_version(self._written)
        for param, job in self._jobs.items():
            entry = self._by_master.get(param)
            if entry is None:
                continue
            if job.low is None:  # the kernel has no such format
                with torch.no_grad():
                    entry.close(0)
            if entry.empties:
                param.grad = None


class OnePass:
    """Decides what the kernel does of each step.

    Attributes:
        said: by optimizer, what was decided, in words.
    """

    def __init__(
        self,
        choice: str,
        policy: Policy,
        optimizers: Mapping[str, torch.optim.Optimizer],
    ) -> None:
        """Find or compile the kernel, if it is wanted.

        Args:
            choice: ``"auto"``, ``"eager"`` or ``"compiled"``.
            policy: of the model.
            optimizers: by name.

        Raises:
            BackendError: ``"compiled"`` cannot be had.
        """
        self._scheme, self._stored = policy.scheme, policy.param
        self._narrow = policy.optimizer_state == "bfloat16"
        known = {name: entry for name, entry in optimizers.items() if type(entry) in KINDS}
        self._names = {id(optimizer): name for name, optimizer in known.items()}
        self._roots: dict[tuple[Any, ...], int | None] = {}
        least = 1 if choice == "compiled" else _LEAST
        why = "update='eager'" if choice == "eager" else self._why_not(optimizers.values(), least)
        if not why:
            try:
                self.run = kernel()
            except UnavailableError as error:
                why = str(error)
                if choice == "auto":
                    warn_uncompiled(why)
        if why and choice == "compiled":
            msg = f"`update` must be 'auto' or 'eager' here, got 'compiled': {why}"
            raise BackendError(msg)
        self.idle = bool(why)
        self.said = {
            name: f"eager: {why or 'no step yet' * (name in known) or 'not in the kernel'}"
            for name in optimizers
        }

    def _why_not(self, optimizers: Iterable[torch.optim.Optimizer], least: int) -> str:
        if self._scheme.name == "none" or self._stored == "float32":
            return "there are no float32 master values"
        if scheme_of(self._scheme) is None:
            return f"master={self._scheme.name}:{self._scheme.rounding} is not in the kernel"
        known = [entry for entry in optimizers if type(entry) in KINDS]
        if not known:
            return f"{', '.join(type(entry).__name__ for entry in optimizers)} is not in the kernel"
        groups = [group for entry in known for group in entry.param_groups]
        params = [param for group in groups for param in group["params"]]
        if any(param.device.type != "cpu" for param in params):
            return "the kernel is for a CPU"
        size = sum(param.numel() for param in params)
        return f"{size} values, less than {least}" if size < least else ""

    def of(
        self,
        optimizer: torch.optim.Optimizer,
        by_master: Mapping[nn.Parameter, MasterState],
        order: Mapping[nn.Parameter, int],
        steps: int,
    ) -> Pass | None:
        """Return what the kernel does of the next step of ``optimizer``; None for nothing.

        Args:
            optimizer: it holds its gradients.
            by_master: the master-weight state of its 16-bit parameters.
            order: of all its parameters.
            steps: real steps so far.
        """
        name = self._names.get(id(optimizer))
        if self.idle or name is None:
            return None
        if has_hooks(optimizer) or not steps_itself(optimizer):
            self.said[name] = "eager: `step` has hooks, or was replaced"
            return None
        jobs: dict[nn.Parameter, Job] = {}
        moving, whys = 0, []
        for group in optimizer.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            moving += len(params)
            rule = rule_of(optimizer, group)
            if isinstance(rule, str):
                whys.append(rule)
                continue
            numbers: dict[float, tuple[float, ...]] = {}
            for param in params:
                entry = by_master.get(param)
                job = self._job(optimizer.state.get(param, {}), param, entry, rule)
                root = None if job is None else self._root(optimizer, group, job)
                if job is None or root is None:
                    continue
                if job.now not in numbers:
                    numbers[job.now] = numbers_of(rule, group, job.now)
                key = key_of(self._scheme.seed, steps, order[param])
                jobs[param] = job._replace(key=key, root=root, numbers=numbers[job.now])
        self.said[name] = f"compiled: {len(jobs)} of {moving} tensors"
        if len(jobs) < moving:
            why = whys[0] if whys else self._why_rest(optimizer)
            self.said[name] += f"; the others by {type(optimizer).__name__} itself: {why}"
        return Pass(optimizer, jobs, by_master) if jobs else None

    def _why_rest(self, optimizer: torch.optim.Optimizer) -> str:
        if None in self._roots.values():
            return "the kernel was seen to round in another way"
        return "no slots yet" if not optimizer.state else "other dtypes, layouts or sizes"

    def _job(
        self,
        state: Mapping[str, Any],
        param: nn.Parameter,
        entry: MasterState | None,
        rule: Rule,
    ) -> Job | None:
        """Return the job of ``param`` without key and numbers; None if the kernel cannot."""
        grad, now = param.grad, 0.0
        count: Any = state.get("step")
        there = {name for name, value in state.items() if value is not None}
        if grad is None or there != {*rule.slots, *(["step"] if rule.counted else [])}:
            return None
        if rule.counted:
            if not isinstance(count, torch.Tensor) or count.dtype is not torch.float32:
                return None
            now = count.item() + 1
        narrow = torch.bfloat16 if self._narrow else torch.float32
        slots = tuple(state[name] for name in rule.slots)
        parts = [(grad, torch.float32), *((slot, narrow) for slot in slots)]
        scheme, low = "plain", None
        beside: torch.Tensor | None = param
        if entry is not None and entry.low.dtype is torch.bfloat16:
            scheme, low = scheme_of(entry.scheme) or scheme, entry.low
            beside = next(iter(entry.parts()), None)
            parts.append((low, torch.bfloat16))
        elif entry is None or not entry.empties:
            parts.append((param, torch.float32))
        else:
            return None
        if beside is not None:
            parts.append((beside, beside.dtype))
        size = param.numel()
        fits = size and not (rule.fused and size % _LANES)
        if not fits or not all(_is_plain(part, dtype, size) for part, dtype in parts):
            return None
        return Job(scheme, rule, low, beside, grad, slots, count, now, 0, 0, ())

    def _root(
        self, optimizer: torch.optim.Optimizer, group: dict[str, Any], job: Job
    ) -> int | None:
        key = (type(optimizer), job.rule, job.scheme)
        if key not in self._roots:
            self._roots[key] = root_that_fits(
                optimizer, group, job.rule, job.scheme, narrow=self._narrow
            )
        return self._roots[key]


def _is_plain(part: Any, dtype: torch.dtype, size: int) -> bool:
    """Return whether ``part`` is ``size`` values of ``dtype`` one after the other on this host."""
    return (
        type(part) in _PLAIN
        and part.dtype is dtype
        and part.numel() == size
        and part.layout is torch.strided
        and part.is_contiguous()
        and not part.is_neg()
        and part.device.type == "cpu"
    )
