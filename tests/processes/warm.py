"""Interpreters that have imported a framework already; each run of one is a fork of its own.

Tests of commands start dozens of processes, and importing a framework is most of what each of
them computes. ``Warm.python`` is a file that is started as an interpreter is:

    PYTHON [-P] (-m MODULE | -c CODE | SCRIPT) [ARGUMENT...]

It hands its arguments, environment, working directory and standard streams to a server that has
imported what such a process will import and nothing else of its state: frameworks start their
threads later. The server forks; the fork does the rest of what an interpreter does, in a session
of its own, and ends when the one who asked is gone. Tests of signals, of ``/proc``, of variables
that are read while a framework is imported, and one of each command run real interpreters.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from pathlib import Path

COMMAND = "numpy typer.rich_utils mpcore.cli mpcore.tools.compare.command"
REPORT = "mpcore.tools.report.report mpcore.tools.tune.page"  # with matplotlib
DYNAMO = "torch._dynamo"  # torch imports it when the first optimizer steps: 0.9 CPU seconds
WORKER = f"{COMMAND} mpcore.tools.compare.worker"
SERVERS = {
    "plain": f"{COMMAND} {REPORT}",
    "worker": WORKER,  # of a backend that a test wrote
    "torch": f"torch {DYNAMO} {WORKER} mpcore_torch.driver",
    "tensorflow": f"tensorflow keras {WORKER} mpcore_tensorflow.driver",
    "mindspore": f"mindspore {WORKER} mpcore_mindspore.driver",
    "port": f"{COMMAND} mpcore_port.command mpcore_port.engine mpcore_port.verify.run",
    "verify": f"torch {DYNAMO} mpcore_port.verify.recorder",
    "replay": "torch mindspore mindspore.experimental mpcore_port_runtime"
    f" {DYNAMO} mpcore_port.verify.recorder mpcore_port.mindspore.native_recorder",
}
"""What each server imports before it forks. A process that needs more imports it itself."""

ENVIRONMENT = {  # as the product sets it for its workers; frameworks read it while imported
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "GLOG_v": "3",
    "TF_ENABLE_ONEDNN_OPTS": "1",
}

PYTHON = """#!{python} -ISB
import array, os, re, socket, sys
argv = sys.argv[1:]
text = " ".join(argv)
if argv[-1].endswith(".json") and os.path.isfile(argv[-1]):
    text += open(argv[-1]).read()
known = ("torch", "tensorflow", "mindspore")
told = r'"backend": "(\\w+)"|explain .*--backend (\\w+)|-c import (\\w+)\\n'
found = re.search(told, text)
found = found and (found[1] or found[2] or found[3])
if "mpcore_port.mindspore.replay" in text:
    kind = "verify" if '"role": "original"' in text else "replay"
elif "mpcore_port.verify" in text:
    kind = "verify"
elif "mpcore port " in text:
    kind = "port"
elif found in known:
    kind = found
elif "worker_torch" in text:  # a rank of a test
    kind = "torch"
elif ".worker" in text:
    kind = "worker"
else:
    kind = "plain"
link = socket.socket(socket.AF_UNIX)
link.connect({folder!r} + "/" + kind)
parts = [os.getcwd(), str(len(argv)), *argv]
parts += [name + "=" + value for name, value in os.environ.items()]
data = chr(0).join(parts).encode("utf-8", "surrogateescape")
socket.send_fds(link, [len(data).to_bytes(8, "big")], [0, 1, 2])
link.sendall(data)
code = int(link.recv(16) or b"1")
if code < 0:
    import resource, signal
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(-code, signal.SIG_DFL) if -code not in (9, 19) else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class Warm:
    """The file that asks, and the process that starts a server when it is first asked.

    Attributes:
        python: what is started in an interpreter's place.
    """

    def __init__(self, folder: Path) -> None:
        self.python = folder / "python"
        text = PYTHON.format(python=sys.executable, folder=str(folder))
        self.python.write_text(text, encoding="utf-8")
        self.python.chmod(0o755)
        self._root = subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
        assert self._root.stdout is not None
        self._root.stdout.readline()  # the sockets are there

    def close(self) -> None:
        """End the servers and what they still run."""
        self._root.communicate()


# --- a server -------------------------------------------------------------------------------


def wait_for_work(folder: Path) -> None:
    """Fork a server for each kind when the first one asks for it; wait for all at the end."""
    sys.executable = str(folder / "python")  # the processes that a fork starts are forks, too
    servers = []
    with selectors.DefaultSelector() as waiting:
        waiting.register(0, selectors.EVENT_READ)  # closed when the tests are over
        for kind in SERVERS:
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(str(folder / kind))
            listening.listen(64)
            waiting.register(listening, selectors.EVENT_READ, kind)
        print("ready", flush=True)
        os.dup2(2, 1)
        while True:
            for key, _ in waiting.select():
                if key.data is None:
                    for server in servers:
                        os.waitpid(server, 0)
                    return
                waiting.unregister(key.fileobj)
                server = os.fork()
                if server:
                    servers.append(server)
                    key.fileobj.close()
                else:
                    waiting.close()
                    serve(key.fileobj, SERVERS[key.data].split())
                    os._exit(0)


def serve(listening: socket.socket, modules: list[str]) -> None:
    """Import ``modules``, then fork a process for each who asks, until the tests are over."""
    for module in modules:
        importlib.import_module(module)
    if len(os.listdir("/proc/self/task")) > 1:
        msg = f"one of {modules} started a thread: a fork would lack it"
        raise RuntimeError(msg)
    gc.collect()
    gc.freeze()
    asking = selectors.DefaultSelector()
    asking.register(0, selectors.EVENT_READ)
    asking.register(listening, selectors.EVENT_READ)
    running: dict[int, tuple[socket.socket, int]] = {}  # by both descriptors of each process
    while True:
        for key, _ in asking.select():
            if key.fd == 0:
                for _, pid in set(running.values()):
                    _kill(pid)
                    os.waitpid(pid, 0)
                return
            if key.fileobj is listening:
                link, _ = listening.accept()
                request = _read(link)
                pid = os.fork()
                if not pid:
                    asking.close()
                    listening.close()
                    os._exit(Process(*request).run())
                for stream in request[0]:
                    os.close(stream)
                ended = os.pidfd_open(pid)
                for handle in (link.fileno(), ended):
                    asking.register(handle, selectors.EVENT_READ, (link, pid, ended))
                    running[handle] = (link, pid)
                continue
            if key.fd not in running:  # ended in this round already
                continue
            link, pid, ended = key.data
            if key.fd != ended:  # who asked was killed
                _kill(pid)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(BrokenPipeError):
                link.sendall(str(code).encode())
            for handle in (link.fileno(), ended):
                asking.unregister(handle)
                del running[handle]
            os.close(ended)
            link.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # before it had a session of its own
        os.kill(pid, signal.SIGKILL)


def _read(link: socket.socket) -> tuple[list[int], list[str]]:
    """Return the three standard streams of one who asks, and what it said."""
    size, streams, _, _ = socket.recv_fds(link, 8, 3)
    data = b""
    while len(data) < int.from_bytes(size, "big"):
        data += link.recv(1 << 20)
    return streams, data.decode("utf-8", "surrogateescape").split("\0")


class Process:
    """What an interpreter does when it starts, after the imports."""

    def __init__(self, streams: list[int], said: list[str]) -> None:
        self.streams, self.folder = streams, said[0]
        count = int(said[1])
        self.argv, variables = said[2 : 2 + count], said[2 + count :]
        self.variables = dict(variable.split("=", 1) for variable in variables)

    def run(self) -> int:
        """Do what the arguments say; return the exit code."""
        os.setsid()
        self._begin()
        code = 0
        try:
            self._do()
        except SystemExit as end:
            code = self._code(end)
        except BaseException:
            traceback.print_exc()
            code = 1
        threading._shutdown()
        import atexit

        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        return code

    def _begin(self) -> None:
        for target, stream in enumerate(self.streams):
            os.dup2(stream, target)
            os.close(stream)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.variables)
        direct = bool(self.variables.get("PYTHONUNBUFFERED"))
        for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
            size = 0 if direct and mode == "w" else -1
            raw = open(number, mode + "b", size, closefd=False)  # noqa: SIM115  # till the end
            lines = name == "stderr"
            text = io.TextIOWrapper(raw, "utf-8", line_buffering=lines, write_through=direct)
            setattr(sys, name, text)
            setattr(sys, f"__{name}__", text)
        sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in self.variables
        tempfile.tempdir = None  # by the variables of this process
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        importlib.invalidate_caches()

    def _do(self) -> None:
        argv = self.argv
        safe = argv[0] == "-P"
        if safe:
            del argv[0]
        own = self.variables.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:] = [*filter(None, own), *sys.path[1:]]  # the first is this file's folder
        what, value = argv[0], argv[1] if len(argv) > 1 else ""
        main = types.ModuleType("__main__")
        if what == "-m":
            sys.argv = argv[1:]
            sys.path[:0] = [] if safe else [self.folder]
            runpy.run_module(value, run_name="__main__", alter_sys=True)
        elif what == "-c":
            sys.argv = ["-c", *argv[2:]]
            sys.path[:0] = [] if safe else [""]
            sys.modules["__main__"] = main
            exec(compile(value, "<string>", "exec"), vars(main))
        else:
            sys.argv = argv
            sys.path[:0] = [] if safe else [str(Path(what).absolute().parent)]
            runpy.run_path(what, run_name="__main__")

    def _code(self, end: SystemExit) -> int:
        if end.code is None:
            return 0
        if isinstance(end.code, int):
            return end.code & 0xFF
        print(end.code, file=sys.stderr)
        return 1


if __name__ == "__main__":
    wait_for_work(Path(sys.argv[1]))
