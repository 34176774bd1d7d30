"""Record what a torch script trains: losses, scales and steps; in the script's own process.

Classes of torch are wrapped before the script runs. A run can be forced to float32, and an
overflow can be planted into the loss of one step.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_post_hook

from mpcore_compat.apex import amp
from mpcore_port.verify.judge import LEAST
from mpcore_port.verify.scaler import with_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Enough", "Recorder", "nudge", "turn_autocast_off", "warm"]


class Enough(BaseException):
    """As many losses as were asked for are recorded; no handler of the script catches this.

    Args:
        is_short: whether they are fewer, because they took long.
    """

    def __init__(self, *, is_short: bool = False) -> None:
        super().__init__()
        self.is_short = is_short


class Recorder:
    """Events of one run, a line of JSON each: ``loss``, ``scale``, ``step``.

    Args:
        path: file to write to.
        losses: how many losses to record, >= 1.
        mode: ``"float32"`` turns autocast and scaling off, ``"mixed"`` changes nothing,
            ``"overflow"`` makes the gradients of one loss infinite.
        at: index of that loss, from 0.
        enough: processor seconds of the process after which ``least`` losses and a step are enough.
        least: see ``enough``.
    """

    def __init__(
        self,
        path: Path,
        losses: int,
        mode: str,
        at: int,
        enough: float = math.inf,
        least: int = LEAST,
    ) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._left, self._mode, self._at = losses, mode, at
        self._enough, self._least = enough, max(least, at + 2 if mode == "overflow" else 1)
        self._seen, self._stepped_once, self._moved = 0, False, False
        self._scaled: list[Any] = []  # kept, so that their ids stay theirs
        self._inside = 0

    def install(self) -> None:
        """Wrap what is recorded."""
        self._wrap_backward()
        for cls in _with_subclasses(GradScaler):
            self._wrap_scaler(cls)
        register_optimizer_step_post_hook(self._stepped)
        self._wrap_apex()
        if self._mode == "float32":
            turn_autocast_off()

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _write(self, kind: str, value: Any) -> None:
        self._file.write(json.dumps([kind, value]) + "\n")
        self._file.flush()

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        found = getattr(optimizer, "found_inf", None)
        if found is None or not bool(found):  # a fused step looks for itself, and may do nothing
            self._write("step", type(optimizer).__name__)
            self._stepped_once = True

    def _loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Record a loss; return what its gradients are taken of."""
        if not self._left:
            raise Enough
        seen = self._seen >= self._least and self._moved
        if seen and time.process_time() > self._enough:
            raise Enough(is_short=True)
        self._left -= 1
        self._write("loss", float(loss.detach()))
        self._seen += 1
        self._moved = self._stepped_once  # this loss is one of parameters that moved
        planted = self._mode == "overflow" and self._seen == self._at + 1
        return loss * float("inf") if planted else loss

    def _wrap_backward(self) -> None:
        original = torch.Tensor.backward

        @functools.wraps(original)
        def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            known = self._inside or any(tensor is scaled for scaled in self._scaled)
            if not known and tensor.numel() == 1:
                tensor = self._loss(tensor)
            self._scaled.clear()
            self._inside += 1  # a function mode calls this again
            try:
                original(tensor, *args, **kwargs)
            finally:
                self._inside -= 1

        torch.Tensor.backward = backward

    def _wrap_scaler(self, cls: Any) -> None:
        own = vars(cls)
        if "scale" in own:
            cls.scale = self._scale(own["scale"])
        if "update" in own:
            cls.update = self._update(own["update"])
        if "__init__" in own and self._mode == "float32":
            cls.__init__ = _disabled(own["__init__"])
            if "state_dict" in own:
                cls.state_dict = with_state(own["state_dict"])

    def _wrap_apex(self) -> None:
        """Record the scripts of apex too; its scale moves when the block of a loss ends."""
        original, initialize = amp.scale_loss, amp.initialize

        @contextlib.contextmanager
        def scale_loss(
            loss: torch.Tensor, optimizers: Any, loss_id: int = 0, *args: Any, **kwargs: Any
        ) -> Iterator[torch.Tensor]:
            with original(self._loss(loss), optimizers, loss_id, *args, **kwargs) as scaled:
                self._scaled.append(scaled)
                yield scaled
            states = amp.state_dict() if self._mode != "float32" else {}
            if states:
                self._write("scale", float(states[f"loss_scaler{loss_id}"]["loss_scale"]))

        @functools.wraps(initialize)
        def in_float32(models: Any, optimizers: Any = None, *_: Any, **asked: Any) -> Any:
            done = initialize(models, optimizers, enabled=False)
            # scripts reach for their scalers: they are there, and scale nothing
            scalers = [amp.LossScaler(1.0) for _ in range(asked.get("num_losses", 1))]
            amp._amp_state.loss_scalers = scalers
            return done

        amp.scale_loss = scale_loss
        if self._mode == "float32":
            amp.initialize = in_float32

    def _scale(self, original: Any) -> Any:
        @functools.wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            if isinstance(outputs, torch.Tensor) and not self._inside:
                outputs = self._loss(outputs)
            self._inside += 1
            try:
                scaled = original(scaler, outputs)
            finally:
                self._inside -= 1
            self._scaled.append(scaled)
            return scaled

        return scale

    def _update(self, original: Any) -> Any:
        @functools.wraps(original)
        def update(scaler: Any, *args: Any, **kwargs: Any) -> None:
            self._inside += 1
            try:
                original(scaler, *args, **kwargs)
            finally:
                self._inside -= 1
            if not self._inside and scaler.is_enabled():
                self._write("scale", float(scaler.get_scale()))

        return update


def warm() -> None:
    """Import now what torch imports with the first optimizer: every fork would for itself."""
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def nudge(seed: int) -> None:
    """Move each weight by one unit in the last place when its network is first called.

    Up or down is drawn apart from the script's own random numbers; weights of 16 bits stay.
    """
    drawn = torch.Generator().manual_seed(seed)
    moved: dict[int, Any] = {}  # kept, so that their ids stay theirs

    def move(module: Any, _: Any) -> None:
        if id(module) in moved:
            return
        moved.update((id(part), part) for part in module.modules())
        with torch.no_grad():
            for weight in module.parameters():
                if id(weight) in moved or weight.dtype not in (torch.float32, torch.float64):
                    continue
                moved[id(weight)] = weight
                up = torch.rand(weight.shape, generator=drawn, device="cpu") < 0.5
                end = torch.where(up, math.inf, -math.inf).to(weight.dtype)
                weight.copy_(torch.nextafter(weight, end))

    torch.nn.modules.module.register_module_forward_pre_hook(move)


def _with_subclasses(cls: Any) -> list[Any]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _with_subclasses(sub))]


def _disabled(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._mpcore_was_on = self._enabled or getattr(self, "_mpcore_was_on", False)
        self._enabled = False

    return init


def turn_autocast_off() -> None:
    """Let autocast regions do nothing, in this process, for good."""
    region = torch.amp.autocast_mode.autocast
    original = region.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._enabled = False

    region.__init__ = init
