"""Run one script in several modes, each in a fork; the process of ``verify.run``.

torch is imported once, before the forks: it has started no threads by then.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import random
import resource
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from mpcore_port.verify import commands
from mpcore_port.verify.judge import PATIENCE

__all__ = ["ALONE", "SHORT", "main", "wait"]

ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
"""The environment of a script that torchrun starts: it is the one rank of its world."""

SHORT = 75
"""The exit code of a run that had enough losses."""


def main() -> None:
    """Run the script that ``argv[1]``, a JSON object, describes.

    Its keys: ``script``, ``args``, ``folder`` (where the records go), ``device`` (what the CPU
    stands in for, ``""`` for nothing), ``modes``, ``losses``, ``at``, ``threads``,
    ``time_limit`` (processor seconds for each mode), ``enough`` (those after which ``LEAST`` losses
    are enough), ``nudge`` (a seed by which weights are moved by one unit in the last place; 0 for
    as they are). A mode that was ended before all losses were there is the last one.
    """
    job = json.loads(sys.argv[1])
    import torch

    torch.set_num_threads(job["threads"])
    if job["device"] == "npu":
        importlib.import_module("torch_npu")  # the stub: it is on the path of this process
    elif job["device"]:
        from mpcore_port.stubs.devices import install

        install(job["device"])
    from mpcore_port.verify.recorder import warm

    warm()
    for mode in job["modes"]:
        folder = Path(job["folder"]) / mode
        folder.mkdir()
        pid = os.fork()
        if pid == 0:
            os._exit(_run(job, mode, folder))
        end = wait(pid, job["time_limit"])
        (folder / "end").write_text(end, encoding="utf-8")
        if end in ("late", "short"):
            break


def wait(pid: int, seconds: float) -> str:
    """Return how a fork ended: ``"ok"``, ``"failed"``, ``"short"`` or ``"late"``.

    Args:
        pid: of the fork, which leads a session and has a limit of ``seconds`` of its own.
        seconds: ``PATIENCE`` times as many are waited by the clock.
    """
    until = time.monotonic() + PATIENCE * seconds
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return _end(status)
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "late"


def _end(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "late" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "failed"
    return {0: "ok", SHORT: "short"}.get(os.waitstatus_to_exitcode(status), "failed")


def _run(job: dict[str, Any], mode: str, folder: Path) -> int:
    """Run the script to its end, or to the last loss that is recorded; return an exit code."""
    os.setsid()  # so that the time limit ends its children too
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    work = folder / "work"
    work.mkdir()
    os.chdir(work)
    import torch

    from mpcore_port.verify.recorder import Enough, Recorder, nudge

    torch.manual_seed(0)  # scripts without a seed of their own begin alike
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    most = math.ceil(job["time_limit"])
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
    recorder = Recorder(folder / "events.jsonl", job["losses"], mode, job["at"], job["enough"])
    recorder.install()
    commands.install()
    if job["nudge"]:
        nudge(job["nudge"])
    script = Path(job["script"])
    sys.argv = [str(script), *job["args"]]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except Enough as exc:
        return SHORT if exc.is_short else 0
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        recorder.close()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    main()
