"""The real command in a process of its own: what it says, its exit code, what is on disk.

Two small backends, ``north`` and ``south``, are plugged in by entry points like any other: an
MLP in numpy that starts at once, so that crashes and hangs can be planted anywhere. Most processes
are forks of warm interpreters; those that are looked at from outside are not.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BACKEND = """
import os
import numpy as np
from dataclasses import dataclass, replace
from mpcore.backend.backend import Support
from mpcore.checkpoint.layer_weights import LayerWeights, Slots
from mpcore_numpy import NumpyBackend
from mpcore_numpy.model import SGD, Model

NAME = {name!r}


class Net(Model):
    gain = np.float32(1)  # on the logits

    def hook(self):  # called by every loss
        pass


def mlp(inputs=8, hidden=16, classes=4, rows=0, layer="linear", idle=False):
    rng = np.random.default_rng(3)
    shapes = {{"a.weight": (hidden, inputs), "a.bias": (hidden,)}}
    shapes |= {{"b.weight": (classes, hidden), "b.bias": (classes,)}}
    layers = {{"a": layer, "b": "linear"}}
    if rows:
        shapes["table.weight"] = (rows, inputs)
        layers = {{"table": "embedding", **layers}}
    if idle:
        shapes["c.weight"], layers["c"] = (2, 2), "linear"
    params = {{n: rng.normal(0, 0.3, s).astype("f4") for n, s in shapes.items()}}
    return Net(layers, params)


class Driver:
    def seed(self, seed):
        pass

    def build(self, builder, x, layout):
        if os.environ["TALK"]:
            print("a framework that talks on standard output")
        return builder()

    def batch(self, x, y, layout, target_layout=""):
        return x, y

    def loss(self, name, model, *, label_smoothing=0.0, layout=""):
        def loss_and_grads(p, buffers, cast, scale, x, y):
            model.hook()
            tokens, x = x, inputs(p, x)
            hidden = np.maximum(x @ p["a.weight"].T + p["a.bias"], 0)
            out = (hidden @ p["b.weight"].T + p["b.bias"]) * model.gain
            if name == "mse":
                loss, d = np.mean((out - y) ** 2), 2 * (out - y) / out.size
            else:
                e = np.exp(out - out.max(1, keepdims=True))
                soft = e / e.sum(1, keepdims=True)
                loss = -np.log(soft[np.arange(len(y)), y]).mean()
                d = (soft - np.eye(out.shape[1], dtype="f4")[y]) / len(y)
            d = d * scale * model.gain
            back = (d @ p["b.weight"]) * (hidden > 0)
            grads = {{"a.weight": back.T @ x, "a.bias": back.sum(0)}}
            grads |= {{"b.weight": d.T @ hidden, "b.bias": d.sum(0)}}
            if "table.weight" in p:
                grads["table.weight"] = np.zeros_like(p["table.weight"])
                count = tokens.shape[1]
                rows = np.repeat((back @ p["a.weight"])[:, None] / count, count, 1)
                np.add.at(grads["table.weight"], tokens, rows)
            zeros = {{n: np.zeros_like(v) for n, v in p.items()}} | grads
            return loss, {{name: zeros[name].astype("f4") for name in p}}

        return loss_and_grads

    def optimizer(self, spec, model):
        return SGD(model.params, spec.learning_rate, spec.momentum)

    def collect(self, model, values):
        found = {{path: LayerWeights(path, kind, {{}}) for path, kind in model.layers.items()}}
        for name, value in values.items():
            path, _, short = name.rpartition(".")
            found[path].arrays[short] = np.array(value)
        return [layer for layer in found.values() if layer.arrays]

    def trains(self, model):
        return dict.fromkeys(model.params, True)

    def weights(self, model, amp=None):
        return self.collect(model, model.params)

    def load_weights(self, model, weights, amp=None):
        for layer in weights:
            for name, value in layer.arrays.items():
                model.params[f"{{layer.path}}.{{name}}"][...] = value

    def gradients(self, model, grads):
        return self.collect(model, grads)

    def slots(self, model, amp):
        sgd = amp.optimizers["optimizer"]
        return Slots(sgd.steps, {{"momentum": self.collect(model, sgd.slots["momentum"])}})

    def load_slots(self, model, amp, slots):
        sgd = amp.optimizers["optimizer"]
        sgd.steps = slots.steps
        for layer in slots.values["momentum"]:
            for name, value in layer.arrays.items():
                sgd.slots["momentum"][f"{{layer.path}}.{{name}}"][...] = value

    def predict(self, model, amp, x, layout, target_layout=""):
        p, x = model.params, inputs(model.params, x)
        hidden = np.maximum(x @ p["a.weight"].T + p["a.bias"], 0)
        return hidden @ p["b.weight"].T + p["b.bias"]


def inputs(p, x):
    return p["table.weight"][x].mean(1) if "table.weight" in p else x


class Backend(NumpyBackend):
    name = NAME
    probe = None  # numpy's would say that nothing is native

    def capabilities(self, model=None):
        can = super().capabilities(model)
        level = "simulated" if NAME == "north" else "native"
        compute = {{dtype: Support(level, "for the test") for dtype in can.compute}}
        return replace(can, backend=NAME, compute=compute)

    def driver(self):
        return Driver()
"""

EXPERIMENT = """
import ctypes, os, sys, time
import numpy as np
from mpcore import Data, OptimizerSpec

optimizer = OptimizerSpec("sgd", learning_rate=0.1, momentum=0.9)
steps, batch = 4, 8


def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 8)).astype("f4")
    y = rng.integers(0, 4, 64).astype("i4")
    return Data(x, y, x[:16], y[:16])


def build_north():
    import north

    return north.mlp()


def build_south():
    import south

    return south.mlp()


def in_run(model, step, act):
    "Let the loss call act() in the given step of each run."
    calls = iter(range(10**9))
    model.hook = lambda: act() if next(calls) == step else None
    return model
"""

SOUTH_FAILS = """
def build_south():
    import south

    return in_run(south.mlp(), 2, lambda: {act})
"""
# The mark says that it has come there, two steps of south being done.
HANGS = "(open(os.environ['MARK'], 'w').close(), time.sleep(300))"
SLOW_SOUTH = SOUTH_FAILS.format(act=HANGS)

LIMIT = 300.0  # seconds after which a test gives up


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugins")
    about = folder / "mpcore_test_backends-1.dist-info"
    about.mkdir()
    names = ("north", "south")
    for name in names:
        (folder / f"{name}.py").write_text(BACKEND.format(name=name), encoding="utf-8")
    lines = [f"{name} = {name}:Backend" for name in names]
    groups = [f"[mpcore.{group}]\n" + "\n".join(lines) for group in ("backends", "models")]
    (about / "entry_points.txt").write_text("\n".join(groups) + "\n", encoding="utf-8")
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mpcore-test-backends\nVersion: 1\n", encoding="utf-8"
    )
    return folder


def _with_default_signals() -> None:
    # A job in the background of a shell, or under nohup, hands on "ignored".
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Place:
    """A working directory, a directory for scratch folders, and the command run in them."""

    def __init__(self, folder: Path, plugins: Path, python: str) -> None:
        self.work, self.scratch, self.plugins = folder / "work", folder / "tmp", plugins
        self.mark = folder / "mark"
        self.python = python
        self.started: list[subprocess.Popen[str]] = []
        for path in (self.work, self.scratch):
            path.mkdir()
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "FORCE_COLOR")
        } | {
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.scratch),
            "PYTHONPATH": str(plugins),
            "COLUMNS": "100",
            "TALK": "yes",
            "MARK": str(self.mark),
            "TERM": "xterm",
        }

    def write(self, text: str = "", name: str = "exp.py", base: str = EXPERIMENT) -> Path:
        path = self.work / name
        path.write_text(base + textwrap.dedent(text), encoding="utf-8")
        return path

    def command(self, *arguments: str) -> list[str]:
        return [self.python, "-P", "-c", "from mpcore.cli import main; main()", *arguments]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.work,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT,
            check=False,
        )

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        child = subprocess.Popen(
            self.command(*arguments),
            cwd=self.work,
            env=self.environment,
            preexec_fn=_with_default_signals,
            **options,
        )
        self.started.append(child)
        return child

    def clean_up(self) -> None:
        """End what a failed test left running."""
        for child in self.started:
            if child.poll() is None:
                child.kill()
                child.wait()

    def compare(
        self, *arguments: str, policies: str = "float32", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return self.run("compare", "exp.py", "--policy", policies, *arguments, **environment)

    def refused(self, *arguments: str, **environment: str) -> str:
        """Return the one line of a refusal, after looking at everything it must not do."""
        before = self.files()
        done = self.run(*arguments, **environment)
        assert done.returncode == 2, done
        assert done.stderr.startswith("error: "), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        assert self.files() == before
        assert list(self.scratch.iterdir()) == []
        return done.stderr

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.work)): path.read_bytes() if path.is_file() else b""
            for path in self.work.rglob("*")
        }

    def report(self, folder: str = "compare-report") -> dict[str, Any]:
        def refuse(name: str) -> None:
            pytest.fail(f"{name} is not strict JSON")

        text = (self.work / folder / "report.json").read_text(encoding="utf-8")
        result: dict[str, Any] = json.loads(text, parse_constant=refuse)
        return result

    def runs(self, folder: str = "compare-report") -> dict[tuple[str, str], dict[str, Any]]:
        return {(r["backend"], r["policy"]): r for r in self.report(folder)["runs"]}

    def workers(self) -> list[int]:
        """Return the processes whose environment says that they belong to this place."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"TMPDIR={self.scratch}".encode() in environment and state != "Z":
                found.append(int(entry.name))
        return found


@pytest.fixture
def place(tmp_path: Path, plugins: Path, warm_python: str) -> Iterator[Place]:
    place = Place(tmp_path, plugins, warm_python)
    yield place
    place.clean_up()


@pytest.fixture
def real_place(place: Place) -> Place:
    """Return one whose processes are found by signals and in /proc."""
    place.python = sys.executable
    return place


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


# --- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--policy", "mixed_fp16"], "did you mean 'mixed_float16'", id="policy"),
        pytest.param(["--policy", "mixed_float16; full"], "must look like", id="rule"),
        pytest.param(["--policy", "compute=float8"], "float8", id="dtype"),
        pytest.param(["--policy", "float32, speed=9"], "policy field", id="field"),
        pytest.param(["--policy", ","], "at least one policy", id="no-policy"),
        pytest.param(["--policy", "float32,float32"], "each one once", id="policy-twice"),
        pytest.param(["--backend", "nort"], "did you mean 'north'", id="backend"),
        pytest.param(["--backend", "north,north"], "each one once", id="backend-twice"),
        pytest.param(["--backend", "torch"], "lacks a function build_torch()", id="builder"),
        pytest.param(["--steps", "0"], "'--steps'", id="steps"),
        pytest.param(["--batch", "0"], "'--batch'", id="batch"),
        pytest.param(["--batch", "many"], "'--batch'", id="not-a-number"),
        pytest.param(["--seed", "-1"], "'--seed'", id="seed"),
        pytest.param(["--lockstep-steps", "-1"], "'--lockstep-steps'", id="lockstep"),
        pytest.param(["--noise-runs", "-2"], "'--noise-runs'", id="noise-runs"),
        pytest.param(["--threads", "0"], "'--threads'", id="threads"),
        pytest.param(["--pairs", "backend"], "did you mean 'backends'", id="pairs"),
        pytest.param(["--layers", "alway"], "did you mean 'always'", id="layers"),
        pytest.param(["--float64", "yes"], "`float64` must be one of", id="float64"),
        pytest.param(["--backend", "north@/no/python"], "Python interpreter", id="python"),
        pytest.param(["--backend", "north:compiled"], "has no modes", id="mode"),
        pytest.param(["--time-limit", "nan"], "'--time-limit'", id="time-limit"),
        pytest.param(["--setps", "3"], "--steps", id="option"),
        pytest.param(["--backends", "north"], "--backend", id="old-option"),
        pytest.param(["--format", "jsn"], "did you mean 'json'", id="format"),
        pytest.param(["--output", "exp.py"], "'exp.py' is a file", id="output"),
    ],
)
def test_wrong_options(place: Place, arguments: list[str], message: str) -> None:
    place.write()
    assert message in place.refused("compare", "exp.py", *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("def data(:\n", "exp.py could not be run (line 1): SyntaxError", id="syntax"),
        pytest.param("\n1 / 0\n", "ZeroDivisionError: division by zero (line 2)", id="raises"),
        pytest.param("import sys\nsys.exit(0)\n", "could not be run: SystemExit", id="exits"),
        pytest.param("", "must define a function data()", id="no-data"),
        pytest.param("def data(): pass\n", "build_<backend>", id="no-builder"),
        pytest.param(
            "def data(): pass\ndef build_nort(): pass\n", "did you mean 'north'", id="no-backend"
        ),
        pytest.param(
            "def data(): return 3\ndef build_north(): pass\n",
            "data() in exp.py must return mpcore.tools.compare.Data, got int",
            id="not-data",
        ),
        pytest.param(
            "def data():\n    return {}['x']\ndef build_north(): pass\n",
            "data() in exp.py failed: KeyError: 'x' (line 2)",
            id="data-raises",
        ),
    ],
)
def test_wrong_files(place: Place, text: str, message: str) -> None:
    place.write(text, base="")
    assert message in place.refused("compare", "exp.py")


def test_no_file(place: Place) -> None:
    place.write("hello", "exp.txt", base="")
    assert "'none.py' does not exist" in place.refused("compare", "none.py")
    assert "'.' is a folder alone" in place.refused("compare", ".")
    assert "must be Python (.py), got 'exp.txt'" in place.refused("compare", "exp.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("x, y = x[:0], y[:0]", "at least one example", id="empty"),
        pytest.param("y = y[:-1]", "`data.y_train` must have 64 examples", id="unequal"),
        pytest.param("x[5, 1] = np.inf", "inf or NaN in example 5", id="inf"),
        pytest.param("x = x.astype('f8'); x[3] = 1e60", "NaN in example 3", id="beyond-float32"),
        pytest.param("x = x.astype('U9')", "must be an array of real numbers", id="text"),
        pytest.param("y = y.astype('f4')", "must hold integer classes", id="float-targets"),
        pytest.param("y[7] = -1", "`data.y_train` must hold classes from 0 on", id="negative"),
    ],
)
def test_wrong_data(place: Place, text: str, message: str) -> None:
    place.write(f"""
        right = data
        def data():
            x, y = right().x_train, right().y_train
            {text}
            return Data(x, y, x[:16], y[:16])
        """)
    assert message in place.refused("compare", "exp.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "raise OSError('no\\nweights')",
            "build_north() in exp.py failed: OSError: no weights (line",
            id="raises",
        ),
        pytest.param("return None", "must return a north model, got None", id="none"),
        pytest.param("return [1]", "got an object of builtins.list", id="list"),
        pytest.param(
            "import south; return south.mlp()", "got an object of south.Net", id="other-framework"
        ),
        pytest.param(
            "import north; return north.Net({}, {})", "north model has no parameters", id="empty"
        ),
        pytest.param(
            "import north; return north.mlp(hidden=9)",
            "layer 1 with weights: 'north:a' in one model, 'south:a' in the other: shapes",
            id="shape",
        ),
        pytest.param(
            "import north; return north.mlp(layer='conv')", "conv against linear", id="category"
        ),
        pytest.param(
            "import north; return north.mlp(idle=True)",
            "3 layers with weights against 2; the first without a partner is 'north:c' (linear)",
            id="number",
        ),
        pytest.param(
            "import north; return north.mlp(inputs=7)", "the north model cannot run", id="input"
        ),
    ],
)
def test_wrong_models(place: Place, text: str, message: str) -> None:
    place.write(f"def build_north():\n    {text}\n")
    assert message in place.refused("compare", "exp.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "y[9] = 4", "`data.y_train` must be in [0, 4), the 4 classes", id="class-too-large"
        ),
        pytest.param(
            "y = np.stack([y, y], 1)",
            "must have the shape (examples) to fit the output (examples, 4)",
            id="class-shape",
        ),
    ],
)
def test_targets_that_do_not_fit_the_model(place: Place, text: str, message: str) -> None:
    place.write(f"""
        right = data
        def data():
            x, y = right().x_train, right().y_train
            {text}
            return Data(x, y, x[:16], y[:16])
        """)
    assert message in place.refused("compare", "exp.py", "--backend", "north")


@pytest.mark.slow
def test_numbers_that_would_broadcast_are_refused(place: Place) -> None:
    place.write("""
        loss = "mse"
        right = data
        def data():
            x = right().x_train
            return Data(x, x[:, 0], x, x[:, 0])
        """)
    message = place.refused("compare", "exp.py", "--backend", "north")
    assert "must have the shape (examples, 4) to fit the output (examples, 4)" in message


@pytest.mark.slow
def test_tokens_out_of_the_vocabulary_are_refused(place: Place) -> None:
    tokens = """
        right = data
        def data():
            x = np.random.default_rng(1).integers(0, 5, (64, 3)).astype("i4")
            x[11, 2] = {token}
            return Data(x, right().y_train, x[:0], right().y_train[:0])
        def build_north():
            import north
            return north.mlp(rows=5)
        """
    place.write(tokens.format(token=5))
    message = place.refused("compare", "exp.py", "--backend", "north")
    assert "`data.x_train` must be in [0, 5), the 5 rows of the largest embedding" in message
    assert "got 5 (the first such example is 11)" in message
    place.write(tokens.format(token=4))
    assert place.compare("--backend", "north").returncode == 0


def test_foreign_files_stay(place: Place) -> None:
    place.write()
    (place.work / "thesis").mkdir()
    (place.work / "thesis" / "text.tex").write_text("years", encoding="utf-8")
    message = place.refused("compare", "exp.py", "--output", "thesis")
    assert "holds 'text.tex', which no report wrote" in message


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("torch", 'the torch backend needs torch; pip install "mpcore[torch]"'),
        ("typer", '`compare` needs packages that are not installed: pip install "mpcore[compare]"'),
        ("jinja2", 'pip install "mpcore[compare]"'),
    ],
)
def test_missing_packages(real_place: Place, module: str, message: str) -> None:
    real_place.write("def build_torch(): pass\n")
    (real_place.scratch.parent / "hide").mkdir()
    hide = real_place.scratch.parent / "hide"
    hide.joinpath("sitecustomize.py").write_text(
        f"import sys; sys.modules[{module!r}] = None", encoding="utf-8"
    )
    path = f"{hide}{os.pathsep}{real_place.plugins}"
    asked = ["compare", "exp.py", "--backend", "north,torch"]
    assert message in real_place.refused(*asked, PYTHONPATH=path)


# --- what works -----------------------------------------------------------------------------


@pytest.mark.slow
def test_two_backends_agree_and_leave_only_the_report(place: Place) -> None:
    file = place.write()
    before = file.read_bytes()
    done = place.compare("--threads", "2", policies="float32,mixed_float16")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert sorted(path.name for path in place.work.iterdir()) == ["compare-report", "exp.py"]
    assert list(place.scratch.iterdir()) == []
    assert file.read_bytes() == before
    report = place.report()
    assert report["settings"]["threads"] == 2
    assert [pair["verdict"] for pair in report["pairs"]] == ["same", "same"]
    assert [run["status"] for run in report["runs"]] == ["ok"] * 4
    for run in report["runs"]:
        assert len(run["loss"]) == len(run["scale"]) == len(run["stepped"]) == 4
        assert 0 < run["step_seconds"]["median"] <= run["step_seconds"]["p90"] < 1
        assert 10e6 < run["peak_memory_bytes"] < 2e9
        assert 0 <= run["test_accuracy"] <= 1


@pytest.mark.slow
def test_log_lines_are_plain_and_come_in_time(real_place: Place) -> None:
    real_place.write(SLOW_SOUTH)
    child = real_place.start("compare", "exp.py", "--policy", "float32")
    assert child.stdout is not None
    seen = ""
    deadline = time.monotonic() + LIMIT
    while "south float32: start" not in seen and time.monotonic() < deadline:
        if select.select([child.stdout], [], [], 1)[0]:
            seen += os.read(child.stdout.fileno(), 4096).decode()
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=LIMIT)
    assert re.search(r"^north float32: ok loss 1\.\d+ 4/4$", seen, re.MULTILINE), seen
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", seen)


@pytest.mark.slow
def test_terminal_shows_bars(real_place: Place) -> None:
    pty = pytest.importorskip("pty")
    real_place.write()
    own, other = pty.openpty()
    child = real_place.start(
        "compare", "exp.py", "--policy", "float32; full [c-d]", stdout=other, stderr=other
    )
    os.close(other)
    shown = b""
    while True:
        try:
            part = os.read(own, 65536)
        except OSError:  # how Linux says that nobody holds the other end
            break
        if not part:
            break
        shown += part
    assert child.wait(timeout=LIMIT) == 0
    text = shown.decode()
    assert "\x1b[" in text
    assert "━" in text
    assert "north float32; full path=[" in text
    assert "rule 'full path=[c-d]' decided for no layer" in text


@pytest.mark.slow
def test_second_comparison_replaces_the_first(place: Place) -> None:
    place.write()
    assert place.compare(policies="float32,mixed_float16").returncode == 0
    assert place.compare("--steps", "1", "--backend", "south").returncode == 0
    names = sorted(path.name for path in (place.work / "compare-report").iterdir())
    assert names == ["report.html", "report.json", "south-float32.jsonl"]
    report = place.report()
    assert report["pairs"] == []
    assert len(report["runs"][0]["loss"]) == 1
    assert report["runs"][0]["step_seconds"]["median"] > 0


@pytest.mark.slow
def test_two_comparisons_at_once_do_not_mix(real_place: Place) -> None:
    real_place.write()
    options = ["--policy", "float32", "--noise-runs", "1"]
    children = [
        real_place.start("compare", "exp.py", *options, "--steps", str(n), "--output", f"out{n}")
        for n in (3, 5)
    ]
    for child in children:
        assert (child.communicate(timeout=LIMIT), child.returncode)[1] == 0
    for n in (3, 5):
        assert [len(run["loss"]) for run in real_place.report(f"out{n}")["runs"]] == [n, n]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "policy", "verdict"),
    [
        (["--lockstep-steps", "0"], "float32", "same"),
        (["--noise-runs", "0"], "float32", "same"),
        (["--noise-runs", "0"], "mixed_bfloat16", "not compared: no noise runs to judge by"),
        (
            ["--noise-runs", "0", "--lockstep-steps", "0"],
            "float32",
            "not compared: no lock-step or",
        ),
    ],
)
def test_less_to_judge_by(place: Place, options: list[str], policy: str, verdict: str) -> None:
    place.write()
    assert place.compare(*options, policies=policy).returncode == 0
    assert place.report()["pairs"][0]["verdict"].startswith(verdict)


@pytest.mark.slow
def test_policies_by_comma_and_by_option(place: Place) -> None:
    place.write()
    done = place.compare(
        *("--backend", "north", "--noise-runs", "0", "--lockstep-steps", "0"),
        *("--policy", "float32, loss_scale=dynamic(init_scale=1024, growth_interval=5)"),
        *("--policy", "compute=bfloat16"),
        policies="mixed_float16; full a, float32",
    )
    assert done.returncode == 0, done.stderr
    assert [run["policy"] for run in place.report()["runs"]] == [
        "mixed_float16; full path=a",
        "float32",
        "float32, loss_scale=dynamic(init_scale=1024.0, growth_interval=5)",
        "compute=bfloat16",
    ]
    assert place.report()["runs"][2]["scale"][0] == 1024


@pytest.mark.slow
def test_policies_that_differ_in_signs_alone_do_not_mix(place: Place) -> None:
    place.write()
    options = ["--policy", "float32; float16 path=?"]
    done = place.compare("--backend", "north", *options, policies="float32; float16 path=*")
    assert done.returncode == 0
    runs = place.report()["runs"]
    assert [len(run["loss"]) for run in runs] == [4, 4]


@pytest.mark.slow
def test_rule_without_a_layer_is_a_warning(place: Place) -> None:
    place.write()
    done = place.compare(policies="mixed_bfloat16; full nothing")
    assert done.returncode == 0
    text = "warning: {} mixed_bfloat16; full path=nothing: rule 'full path=nothing' decided"
    for backend in ("north", "south"):
        assert done.stdout.count(text.format(backend)) == 1
    for run in place.report()["runs"]:
        assert run["plan"]["unused_rules"] == ["full path=nothing"]


@pytest.mark.slow
def test_what_a_backend_cannot_do_is_not_run(place: Place) -> None:
    place.write()
    done = place.compare("--policy", "mixed_bfloat16, simulation=refuse")
    assert done.returncode == 0, done.stderr
    north, south = place.report()["runs"][-2:]
    assert (north["status"], south["status"]) == ("not run", "ok")
    assert "bfloat16 is simulated in north on cpu: for the test" in north["error"]
    assert len(south["loss"]) == 4  # nobody to wait for: it is its own reference
    assert "no run of north" in place.report()["pairs"][-1]["verdict"]


@pytest.mark.slow
def test_experiment_may_read_what_lies_beside_the_user(real_place: Place) -> None:
    real_place.write("""
        import beside
        right = data
        def data():
            values = np.load("values.npy")
            rng = np.random.default_rng()  # without a seed: the same for all runs even so
            keep = right()
            noise = rng.standard_normal(keep.x_train.shape).astype("f4")
            return Data(keep.x_train + values[0] * noise, keep.y_train, keep.x_test, keep.y_test)
        """)
    real_place.write("value = 1\n", "beside.py", base="")
    np.save(real_place.work / "values.npy", np.ones(2, "f4"))
    # a module of the working directory must not pass for a library
    real_place.write("raise RuntimeError('never imported')\n", "safetensors.py", base="")
    assert real_place.compare().returncode == 0
    assert real_place.report()["pairs"][0]["verdict"] == "same"
    assert not list(real_place.work.rglob("rank_0"))


@pytest.mark.slow
def test_json_alone_goes_to_standard_output(place: Place) -> None:
    place.write()
    options = ["--noise-runs", "0", "--lockstep-steps", "0", "--steps", "1", "--format", "json"]
    named = ["--backend", "north", "--backend", "south", "--policy", "mixed_bfloat16"]
    done = place.compare(*named, *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == place.report()
    assert set(place.runs()) == {
        (name, policy) for name in ("north", "south") for policy in ("float32", "mixed_bfloat16")
    }
    assert "report: " in done.stderr


@pytest.mark.slow
@needs_proc
def test_peak_memory_is_the_worker_s_own(real_place: Place) -> None:
    real_place.write("""
        right = data
        def data():
            np.ones(100_000_000)  # 800 MB, for a moment, where the data is made
            return right()
        """)
    assert real_place.compare("--backend", "north", "--noise-runs", "0").returncode == 0
    assert real_place.report()["runs"][0]["peak_memory_bytes"] < 400e6


# --- what goes wrong on the way -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "words", "steps"),
    [
        pytest.param("os._exit(7)", "ended with code 7", 2, id="exit"),
        pytest.param("1 / 0", "ZeroDivisionError: division by zero", 2, id="raises"),
        pytest.param("sys.exit(0)", "SystemExit: 0", 2, id="sys-exit"),
        pytest.param("ctypes.string_at(0)", "killed by SIGSEGV", 2, id="segfault"),
    ],
)
def test_crash_of_one_run(place: Place, act: str, words: str, steps: int) -> None:
    place.write(SOUTH_FAILS.format(act=act))
    done = place.compare(policies="float32,mixed_float16")
    assert done.returncode == 1, done
    assert "Traceback" not in done.stdout + done.stderr
    for (backend, _), run in place.runs().items():
        if backend == "north":
            assert (run["status"], len(run["loss"])) == ("ok", 4)
        else:
            assert run["status"] == "failed"
            assert words in run["error"]
            assert (len(run["loss"]), run["step_seconds"]) == (steps, None)
    assert place.report()["pairs"][0]["verdict"] == "not compared: no run of south"
    records = place.work / "compare-report" / "south-float32.jsonl"
    assert len(records.read_text(encoding="utf-8").splitlines()) == steps
    assert list(place.scratch.iterdir()) == []


@pytest.mark.slow
def test_crash_of_the_reference_leaves_the_others(place: Place) -> None:
    place.write(SOUTH_FAILS.format(act="os._exit(7)"))
    assert place.compare("--backend", "south,north").returncode == 1
    runs = place.runs()
    assert runs["south", "float32"]["status"] == "failed"
    assert runs["north", "float32"]["status"] == "ok"


@pytest.mark.slow
def test_builder_that_kills_the_process(place: Place) -> None:
    place.write("def build_north():\n    os._exit(9)\n")
    assert place.compare("--backend", "north,south").returncode == 1
    runs = place.runs()
    assert runs["north", "float32"]["status"] == "failed"
    assert "ended with code 9" in runs["north", "float32"]["error"]
    assert runs["south", "float32"]["status"] == "ok"


@pytest.mark.slow
@needs_proc
def test_hang_ends_at_the_time_limit(real_place: Place) -> None:
    # The grandchild holds the worker's pipes: it has to go as well.
    real_place.write(SOUTH_FAILS.format(act="(os.fork(), time.sleep(300))"))
    done = real_place.compare("--time-limit", "8")
    assert done.returncode == 1
    south = real_place.runs()["south", "float32"]
    assert south["error"].startswith("stopped after the time limit of 8 s")
    assert "train, step 2 of 4" in south["error"]
    assert len(south["loss"]) == 2
    assert real_place.workers() == []


@pytest.mark.slow
def test_nan_from_the_first_step(place: Place) -> None:
    place.write("""
        def build_south():
            import south
            model = south.mlp()
            model.gain = np.float32("nan")
            return model
        """)
    done = place.compare(policies="float32,mixed_float16")
    assert done.returncode == 0, done.stderr
    south = place.runs()["south", "float32"]
    assert south["loss"] == ["nan"] * 4
    assert south["stepped"] == [False] * 4
    for pair in place.report()["pairs"]:
        assert pair["verdict"].startswith("different: ")
        assert "only one loss is finite at step 0" in pair["verdict"]
    done = place.compare("--backend", "south")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_nan_in_both_is_not_called_same(place: Place) -> None:
    place.write("""
        import north, south
        north.Net.gain = south.Net.gain = np.float32("nan")
        """)
    done = place.compare()
    assert done.returncode == 0, done.stderr
    assert place.report()["pairs"][0]["verdict"] == "not compared: neither run has a finite loss"


@pytest.mark.slow
def test_another_forward_pass_is_different(place: Place) -> None:
    place.write("""
        def build_south():
            import south
            model = south.mlp()
            model.gain = np.float32(1.01)
            return model
        """)
    assert place.compare().returncode == 0
    assert place.report()["pairs"][0]["verdict"].startswith("different: one step's loss by")


def _until(place: Place, child: subprocess.Popen[str], words: str) -> None:
    assert child.stdout is not None
    seen = ""
    while words not in seen:
        line = child.stdout.readline()
        assert line, f"{seen} {child.communicate()}"
        seen += line


def _wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.mark.slow
@needs_proc
def test_interrupt_reports_what_was_done(real_place: Place) -> None:
    real_place.write(SLOW_SOUTH)
    child = real_place.start("compare", "exp.py", "--policy", "float32,mixed_float16")
    _until(real_place, child, "south float32: start")
    _wait_for(real_place.mark.exists)
    time.sleep(1)  # what was written before the mark is read by now
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LIMIT)
    assert child.returncode == 130, (out, err)
    assert "Traceback" not in out + err
    assert "interrupted" in out
    assert real_place.workers() == []
    assert list(real_place.scratch.iterdir()) == []
    states = [(run["status"], len(run["loss"])) for run in real_place.report()["runs"]]
    assert states == [("ok", 4), ("interrupted", 2), ("not run", 0), ("not run", 0)]
    assert real_place.report()["interrupted"] is True


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
    ids=["term", "hup", "kill"],
)
def test_end_from_outside_leaves_nothing(real_place: Place, number: int, code: int) -> None:
    real_place.write(SLOW_SOUTH)
    child = real_place.start("compare", "exp.py", "--policy", "float32")
    _until(real_place, child, "south float32: start")
    _wait_for(real_place.mark.exists)
    assert len(real_place.workers()) == 2
    child.send_signal(number)
    child.communicate(timeout=LIMIT)
    assert child.returncode == code
    _wait_for(lambda: real_place.workers() == [])
    if number != signal.SIGKILL:  # nobody can clean up after that one
        assert list(real_place.scratch.iterdir()) == []
    assert sorted(path.name for path in real_place.work.iterdir()) == ["exp.py"]


@pytest.mark.slow
@needs_proc
def test_interrupt_before_the_first_run(real_place: Place) -> None:
    real_place.write("def build_north():\n    time.sleep(300)\n")
    child = real_place.start("compare", "exp.py")
    _until(real_place, child, "north: inspect")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=LIMIT)
    assert (child.returncode, err) == (130, "stopped\n")
    assert real_place.workers() == []
    assert list(real_place.scratch.iterdir()) == []
    assert sorted(path.name for path in real_place.work.iterdir()) == ["exp.py"]


# --- help, version, explain -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["Example: mpcore compare", "explain", "Exit codes"]),
        (["--help"], ["Example: mpcore compare", "explain", "Exit codes"]),
        (["compare", "--help"], ["Example: mpcore compare", "--threads", "--policy", "--format"]),
        (["explain", "--help"], ["Example: mpcore explain", "--format"]),
    ],
)
def test_help_teaches(place: Place, arguments: list[str], words: list[str]) -> None:
    done = place.run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    for word in words:
        assert word in done.stdout
    assert "--no-" not in done.stdout


def test_version(real_place: Place) -> None:
    from mpcore import __version__

    done = real_place.run("--version")
    assert (done.returncode, done.stdout) == (0, f"mpcore {__version__}\n")


def test_unknown_command_and_option(real_place: Place) -> None:
    assert "Did you mean 'compare'?" in real_place.refused("comprae")
    assert "--version" in real_place.refused("--verison")
    assert "EXPERIMENT.py" in real_place.refused("compare")


@pytest.mark.slow
def test_explain_prints_a_table_or_json(place: Place) -> None:
    place.write()
    policy = "mixed_bfloat16; full b"
    shown = place.run("explain", "exp.py", "--policy", policy)
    assert shown.returncode == 0, shown.stderr
    assert "rule: full path=b" in shown.stdout
    done = place.run(
        "explain", "exp.py", "--policy", policy, "--backend", "south", "--format", "json"
    )
    plan = json.loads(done.stdout)  # although the framework talks on standard output
    assert [layer["compute"] for layer in plan["layers"]][1:] == ["bfloat16", "float32"]
    assert sorted(path.name for path in place.work.iterdir()) == ["exp.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "mixed_fp16"], "did you mean 'mixed_float16'"),
        (["--backend", "nort"], "did you mean 'north'"),
        (["--backend", "torch"], "lacks a function build_torch()"),
    ],
)
def test_explain_refuses(place: Place, arguments: list[str], message: str) -> None:
    place.write()
    assert message in place.refused("explain", "exp.py", *arguments)


def test_explain_says_what_its_builder_does_wrong(place: Place) -> None:
    place.write("def build_north():\n    return None\n")
    assert "must return a north model, got None" in place.refused("explain", "exp.py", TALK="")


@pytest.mark.slow
def test_explain_warns_of_what_the_backend_cannot_do(place: Place) -> None:
    place.write()
    done = place.run("explain", "exp.py", "--policy", "mixed_float16, simulation=refuse", TALK="")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: float16 is simulated in north on cpu")
