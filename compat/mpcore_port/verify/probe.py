"""Find out what batches a training step wants, by trying; the process of ``find_inputs``.

The first layers of the model say what they take; the loss says what it compares with. Each try
runs the step in a fork until losses were seen.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import resource
import runpy
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpcore_port.verify.inputs import FORMS, Input
from mpcore_port.verify.search import Search

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["main"]

_BATCH = 8
_SIDES = (32, 28, 64, 16, 224, 14, 8, 128, 96, 256)  # of pictures
_LENGTHS = (16, 8, 32, 64, 128, 256, 512, 100, 1000)  # of texts and signals
_WANTED = 3  # losses of a try
_SLOW = 5.0  # processor seconds, after which one loss is enough
_OF_SEARCH = 0.6  # of all tries: batches of several tensors, one tensor after the other
_OF_ONE = 0.6  # of what is left: one try that is too slow leaves time for a smaller one
_PATIENCE = 6  # times the processor seconds, by the clock
_ANYTHING = [  # where no first layer says it
    Input("float32", (_BATCH, 3, 32, 32)),
    Input("int64", (_BATCH, 16), 64),
    Input("float32", (_BATCH, 16)),
    Input("float32", (_BATCH, 1, 4096)),
]


class _Found(BaseException):
    """A try has told what it could."""


def main() -> None:
    """Try the step that ``argv[1]``, a JSON object, describes; print the inputs it ran with.

    Its keys: ``script`` (path; the text ``{INPUTS}`` in it is put in), ``args``, ``folder``,
    ``target`` (index of the tensor that the loss compares with, or None), ``count`` (tensors of a
    batch), ``time_limit`` (processor seconds for all tries).
    """
    job = json.loads(sys.argv[1])
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("error", message="Using a target size")  # of another shape
    from mpcore_port.stubs.devices import install

    install("cuda")
    from mpcore_port.verify import recorder, stand_in  # noqa: F401  # once, before the forks

    recorder.warm()
    left = Budget(job["time_limit"])
    answer, words = "", ""
    first = _try(job, "", left)
    words, seconds, line = first.get("error", ""), 0.0, first.get("line", 0)
    lines = first.get("lines", [])
    early = bool(line and not first.get("layers") and "stand_ins" in first)
    names = set(first.get("stand_ins", []))
    errors: list[str] = []
    for text in (
        () if early else _candidates(job, first, left, names, errors)
    ):  # early: before a batch is asked for
        if job["count"] > 1 and left.left < left.seconds * _OF_SEARCH:
            break
        found = _try(job, text, left)
        if not found and "[8" in text:  # it took too long
            text = re.sub(r"\[8\b", "[2", text)  # the one that ran is the answer
            found = _try(job, text, left)
        names |= set(found.get("stand_ins", []))
        if found.get("enough"):
            answer, seconds = text, found["seconds"]
            break
        if found.get("error"):
            words = found["error"]
            errors.append(words)
        if found.get("line"):
            line, lines = found["line"], found["lines"]
        if left.is_spent:
            break
    if not (answer or early) and job["count"] > 1 and not left.is_spent:
        search = Search(job["names"], _inputs(first.get("layers", [])), names)
        found = search.run(lambda text: _try(job, text, left, far=True), lambda: left.is_spent)
        names |= set(found.get("stand_ins", []))
        if found.get("enough"):
            answer, seconds = found["text"], found["seconds"]
        elif found.get("error"):
            words = found["error"]
            line, lines = found.get("line", line), found.get("lines", lines)
    layer = first.get("layers", [["", 0, 0]])[0][0] if first.get("layers") else ""
    result = {
        "inputs": answer,
        "words": words,
        "layer": layer,
        "seconds": seconds,
        "line": line,
        "lines": lines,
        "used": left.seconds - left.left,
        "stand_ins": found.get("stand_ins", []) if answer else [],
    }
    (Path(job["folder"]) / "answer.json").write_text(json.dumps(result), encoding="utf-8")


def _candidates(
    job: dict[str, Any],
    first: dict[str, Any],
    left: Budget,
    names: set[str],
    errors: list[str],
) -> Iterator[str]:
    """Yield batches that the step may run with, and forms of networks that are not there.

    ``names`` are those of networks that stood in so far: without one their form says nothing.
    ``errors`` is what the tries said so far: what they want is tried next.
    """
    if not job["count"]:
        yield from (f"float32[1] -> {form}" for form in FORMS)
        return
    for form in FORMS if first.get("stand_ins") is not None else ("",):
        waiting = _inputs(first.get("layers", [])) or list(_ANYTHING)
        done: list[Input] = []
        while waiting:
            inputs = waiting.pop(0)
            done.append(inputs)
            tail = f" -> {form}" if form else ""
            for text in _with_targets(job, inputs, left, tail):
                yield text + tail
            wanted = [one for error in errors for one in _wanted(error) if one not in done]
            errors.clear()
            waiting = [*wanted, *(one for one in waiting if one not in wanted)]
        if not names:
            return


def _wanted(error: str) -> list[Input]:
    """Return inputs that an error of a layer or of a view asks for."""
    found = re.search(r"weight of size \[\d+, (\d+), \d+, \d+\]", error)
    if found:
        sides = (64, 32, 28, 128, 224)
        return [Input("float32", (_BATCH, int(found[1]), side, side)) for side in sides]
    found = re.search(r"shape '\[-1, ([\d, ]+)\]' is invalid for input", error)
    if found:
        return [Input("float32", (_BATCH, *map(int, found[1].split(", "))))]
    found = re.search(r"cannot be multiplied \(\d+x\d+ and (\d+)x\d+\)", error)
    return _inputs([["Linear", int(found[1]), 0]]) if found else []


def _inputs(layers: list[list[Any]]) -> list[Input]:
    """Return what the first layers of a model may take, the likeliest first."""
    found: list[Input] = []
    for kind, size, _ in layers[:2]:
        if kind == "Conv2d":
            found += [Input("float32", (_BATCH, size, side, side)) for side in _SIDES]
        elif kind == "Conv1d":
            found += [Input("float32", (_BATCH, size, length)) for length in _LENGTHS]
        elif kind == "Conv3d":
            found += [Input("float32", (_BATCH, size, side, side, side)) for side in (16, 8, 32)]
        elif kind == "Embedding":
            found += [Input("int64", (_BATCH, length), size) for length in _LENGTHS]
            found.append(Input("int64", (_BATCH,), size))
        elif kind in ("Linear", "BatchNorm1d"):
            found.append(Input("float32", (_BATCH, size)))
            found += [Input("float32", (_BATCH, length, size)) for length in _LENGTHS[:3]]
            side = round(size**0.5)
            if side * side == size:  # a flattened picture
                found.append(Input("float32", (_BATCH, 1, side, side)))
        elif kind in ("LSTM", "GRU", "RNN", "LayerNorm"):
            if kind != "LayerNorm":  # rows of a square picture
                found += [Input("float32", shape) for shape in ((_BATCH, size, size),)]
            found += [Input("float32", (_BATCH, length, size)) for length in _LENGTHS[:4]]
    return found


def _with_targets(job: dict[str, Any], item: Input, left: Budget, tail: str) -> list[str]:
    """Return whole batches with ``item`` in it: the targets are those of the loss."""
    place, count = job["target"], job["count"]
    others = [item] * count
    if place is None:
        return [", ".join(map(str, others))]
    texts = []
    others[place] = Input("int64", (_BATCH,), 1)
    seen = _try(job, ", ".join(map(str, others)) + tail, left, look=True)
    for target in _targets(seen, item) or [Input("int64", (_BATCH,), 10), item]:
        others[place] = target
        texts.append(", ".join(map(str, others)))
    if seen.get("loss", "").startswith("binary"):  # what goes in may be compared with as well
        between = str(Input(item.dtype, item.shape, 2))
        texts.append(", ".join([between] * count))
    return texts


def _targets(seen: dict[str, Any], item: Input) -> list[Input]:
    loss, out = seen.get("loss", ""), tuple(seen.get("out", ()))
    if not out:
        return []
    if loss in ("cross_entropy", "nll_loss"):
        return [Input("int64", shape, out[1]) for shape in _index_shapes(out, item)]
    below = 2 if loss.startswith("binary") else None
    shapes = dict.fromkeys([out, tuple(n for n in out if n != 1) or (_BATCH,), out[:1]])
    floats = [Input("float32", shape, below) for shape in shapes]
    if loss or len(out) < 2:  # or the class that a network is told, which no loss gets
        return [*floats, Input("int64", (_BATCH,), 10)]
    labels = [Input("int64", (out[0], *out[2:]), out[1])]
    if len(out) == 3 and item.dtype == "int64":  # scores of the words that follow
        labels.insert(0, Input("int64", out[:-1], out[-1]))
    return [*labels, *floats]


def _index_shapes(out: tuple[int, ...], item: Input) -> list[tuple[int, ...]]:
    """Return shapes of labels for ``out``, which may be flattened over time."""
    plain = (out[0], *out[2:])
    if len(out) == 2 and out[0] > _BATCH and out[0] % _BATCH == 0:
        return [(_BATCH, out[0] // _BATCH), plain]
    return [plain]


# --- one try ------------------------------------------------------------------------------------


class Budget:
    """Processor seconds that are left for tries; a busy machine does not shorten them.

    Args:
        seconds: of all tries together; by the clock ``_PATIENCE`` times as many may pass.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.left = seconds, seconds
        self.until = time.monotonic() + _PATIENCE * seconds

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0 or time.monotonic() > self.until

    def wait(self, pid: int) -> None:
        """Wait for a try, and count what it used; its time limit is the kernel's."""
        while time.monotonic() < self.until:
            done, _, used = os.wait4(pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.01)
        else:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not come so far as to have a group
                os.kill(pid, signal.SIGKILL)
            _, _, used = os.wait4(pid, 0)
        self.left -= used.ru_utime + used.ru_stime


def _try(
    job: dict[str, Any], inputs: str, left: Budget, *, look: bool = False, far: bool = False
) -> dict[str, Any]:
    """Run the step in a fork; return what it told."""
    if left.is_spent:
        return {"error": f"no inputs were found in {job['time_limit']:g} s of computing"}
    path = Path(job["folder"]) / "told.json"
    path.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        most = math.ceil(max(left.left * _OF_ONE, min(left.left, _SLOW))) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
        os._exit(_run(job, inputs, path, look=look, far=far))
    left.wait(pid)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _run(job: dict[str, Any], inputs: str, path: Path, *, look: bool, far: bool) -> int:
    os.setsid()
    os.chdir(tempfile.mkdtemp(dir=path.parent))  # a try must not meet what another has written
    log = os.open(path.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from mpcore_port.verify.recorder import turn_autocast_off
    from mpcore_port.verify.stand_in import used

    told: dict[str, Any] = {"losses": 0, "reach": [0, 0]}
    _watch(told, ask=not inputs, look=look)
    turn_autocast_off()  # shapes are asked for, not precision: a CPU has not every 16-bit kernel
    script = path.parent / "step.py"
    nothing = ", ".join(["float32[1]"] * job["count"])
    text = Path(job["script"]).read_text(encoding="utf-8")
    script.write_text(text.replace("{INPUTS}", inputs or nothing), encoding="utf-8")
    sys.argv = [str(script), *job["args"]]
    calls = [0]

    def count(frame: Any, event: str, _: Any) -> None:
        calls[0] += event == "c_call"

    if far:
        sys.setprofile(count)  # how far a try came, beside its line
    try:
        runpy.run_path(str(script), run_name="__main__")
    except _Found:
        told.pop("error", None)
    except BaseException as exc:
        traceback.print_exc()
        lines = _script_lines(exc, script)
        line = lines[0] if lines else 0
        told["line"], told["lines"] = line, lines
        inside = [n for n in reversed(lines) if job["loop"][0] <= n <= job["loop"][1]]
        told["reach"] = [inside[0] if inside else 0, calls[0]]
        told["error"] = f"{type(exc).__name__}: {exc}"[:300] + (f" (line {line})" if line else "")
    told["stand_ins"] = used()
    path.write_text(json.dumps(told), encoding="utf-8")
    return 0


def _script_lines(exc: BaseException, script: Path) -> list[int]:
    """Return the lines of the original that lead to where a step failed, the innermost first."""
    from mpcore_port.verify.extract import HEAD

    frames = traceback.extract_tb(exc.__traceback__)
    lines = [(f.lineno or 0) - HEAD for f in frames if f.filename == str(script)]
    return [line for line in reversed(lines) if line > 0]


def _watch(told: dict[str, Any], *, ask: bool, look: bool) -> None:
    """Note layers when batches are asked for, the loss when it compares, and backward passes."""
    import torch

    from mpcore_port.verify import synthetic

    modules: list[Any] = []
    original = torch.nn.Module.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        modules.append(self)

    torch.nn.Module.__init__ = init

    def asked(batches: Any) -> Any:
        if ask:
            told["layers"] = _first_layers(modules)
            raise _Found
        return list.__iter__(batches)

    synthetic.Batches.__iter__ = asked  # type: ignore[method-assign]  # this process alone
    if look:
        _look(torch, told)
    backward = torch.Tensor.backward

    @functools.wraps(backward)
    def count(tensor: Any, *args: Any, **kwargs: Any) -> None:
        backward(tensor, *args, **kwargs)
        now = time.process_time()
        told["seconds"], told["at"] = now - told.get("at", 0.0), now
        told["losses"] += 1
        if told["losses"] >= _WANTED or now > _SLOW:
            told["enough"] = True
            raise _Found

    torch.Tensor.backward = count


def _look(torch: Any, told: dict[str, Any]) -> None:
    losses = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
    for name in (*losses, "binary_cross_entropy", "binary_cross_entropy_with_logits"):
        setattr(torch.nn.functional, name, functools.partial(_tell, told, name))

    def out(module: Any, _: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.dim():
            told["out"] = list(output.shape)

    torch.nn.modules.module.register_module_forward_hook(out)


def _tell(told: dict[str, Any], name: str, output: Any, *_: Any, **__: Any) -> Any:
    told["loss"], told["out"] = name, list(output.shape)
    raise _Found


def _first_layers(modules: list[Any]) -> list[list[Any]]:
    """Return kind and input size of the first layers of the models, parts left out."""
    parts = {id(part) for module in modules for part in module.children()}
    found = []
    for module in modules:
        if id(module) in parts:
            continue
        for layer in module.modules():
            size = _input_size(layer)
            if size:
                found.append([type(layer).__name__, size, 0])
    return found


def _input_size(layer: Any) -> int:
    names = ("in_channels", "in_features", "num_embeddings", "input_size", "num_features")
    for name in names:
        size = getattr(layer, name, None)
        if isinstance(size, int):
            return size
    shape = getattr(layer, "normalized_shape", ())
    return int(shape[-1]) if shape else 0


if __name__ == "__main__":
    main()
