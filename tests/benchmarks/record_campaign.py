"""Public training scripts with planted faults, compared by recordings alone.

python tests/benchmarks/record_campaign.py SOURCES --out FILE.jsonl [--subjects minGPT,vae]
    [--faults eps,clip]

SOURCES is a folder of bare git copies, ``owner+name/repo``; for Keras ``keras_mnist.py`` beside
them (keras-io, examples/vision/mnist_convnet.py). Faults are in record_faults.py.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import runpy
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo
from record_faults import HELD_OUT, SUBJECTS, Fault, Subject

import mpcore_torch.listener  # noqa: F401  # forks must not import it again
from mpcore.tools.recording.compare_runs import compare_runs

STEPS = 5
PRELUDE = "import os as _os, mpcore as _mp\n"

TORCHVISION = """
import torch
class _Digits(torch.utils.data.Dataset):
    def __init__(self, root, train=True, download=False, transform=None):
        made = torch.Generator().manual_seed(3)
        self.y = torch.randint(0, 10, (COUNT,), generator=made)
        self.x = torch.rand(COUNT, 1, 28, 28, generator=made) * 0.5
        for n in range(COUNT):
            self.x[n, 0, 2 * int(self.y[n]): 2 * int(self.y[n]) + 4] += 0.5
        self.transform = transform
    def __len__(self): return len(self.y)
    def __getitem__(self, n):
        return self.transform(self.x[n]), int(self.y[n])
class datasets: MNIST = _Digits
class transforms:
    @staticmethod
    def ToTensor(): return lambda x: x
    @staticmethod
    def Normalize(mean, std): return lambda x: (x - mean[0]) / std[0]
    @staticmethod
    def Compose(parts):
        def run(x):
            for part in parts: x = part(x)
            return x
        return run
class utils:
    @staticmethod
    def save_image(*args, **kwargs): pass
import sys
sys.modules["torchvision.utils"] = utils
"""


def unpack(subject: Subject, sources: Path, into: Path) -> None:
    """Write the files of a subject, and the data that they read."""
    into.mkdir(parents=True)
    if subject.repo:
        done = subprocess.run(
            [
                "git",
                "--git-dir",
                sources / subject.repo / "repo",
                "archive",
                "HEAD",
                *subject.paths,
            ],
            capture_output=True,
            check=True,
        )
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
            tar.extractall(into, filter="data")
    else:
        (into / "main.py").write_text((sources / subject.paths[0]).read_text())
    home = into / subject.home
    rng = np.random.default_rng(5)
    if subject.data == "tokens":
        folder = home / "data" / "made"
        folder.mkdir(parents=True, exist_ok=True)
        for part in ("train", "val"):
            rng.integers(0, 60, 4000).astype(np.uint16).tofile(folder / f"{part}.bin")
        (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 60}))
    if subject.data == "words":
        folder = home / "data" / "wikitext-2"
        folder.mkdir(parents=True, exist_ok=True)
        for part, lines in (("train", 60), ("valid", 12), ("test", 12)):
            words = [" ".join(f"w{n}" for n in rng.integers(0, 50, 20)) for _ in range(lines)]
            (folder / f"{part}.txt").write_text("\n".join(words) + "\n")
    if subject.data == "digits":
        count = str(subject.examples)
        (home / "torchvision.py").write_text(TORCHVISION.replace("COUNT", count))
        (home / "results").mkdir(exist_ok=True)


def edited(home: Path, edits: list[tuple[str, str, str]]) -> None:
    for name, old, new in edits:
        path = home / name
        text = path.read_text()
        if old not in text:
            msg = f"{path}: {old!r} is not in it"
            raise SystemExit(msg)
        path.write_text(text.replace(old, new))


def trained(
    subject: Subject, sources: Path, folder: Path, run: Path, more: Any, threads: int
) -> str:
    """Run the script with some edits, recorded; return what went wrong."""
    unpack(subject, sources, folder)
    home = folder / subject.home
    edited(home, [*subject.edits, *more])
    script = home / subject.script
    future = "from __future__ import print_function\n"
    text = script.read_text()
    script.write_text(future * (future in text) + PRELUDE + text.replace(future, ""))
    known = {
        "RUN": str(run),
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "PYTHONPATH": f"{home}:{folder}:{os.environ.get('PYTHONPATH', '')}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    log = folder / "log.txt"
    if subject.repo:
        forked(subject, home, [str(home), str(folder)], known, log, threads)
    else:
        with log.open("w") as file:
            subprocess.run(
                [sys.executable, subject.script, *subject.args],
                cwd=home,
                env=os.environ | known,
                stdout=file,
                stderr=file,
                timeout=600,
                check=False,
            )
    made = len(list(run.glob("rank-0/step-*")))
    if made < STEPS:
        last = (log.read_text().strip().splitlines() or [""])[-1]
        return f"{made} steps: {last}"
    return ""


def forked(
    subject: Subject, home: Path, path: list[str], known: dict[str, str], log: Path, threads: int
) -> None:
    """Run a script of torch in a fork: importing torch takes longer than the steps."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.update(known)
        os.chdir(home)
        sys.path[:0] = path
        sys.argv = [subject.script, *subject.args]
        torch.set_num_threads(threads)
        runpy.run_path(subject.script, run_name="__main__")
    except BaseException:  # a fork must not run on into the campaign
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def judged(fault: Fault, a: Path, b: Path) -> dict[str, Any]:
    (found,) = compare_runs(a, b).values()
    cause = next(iter(found.found.root_causes), None) if found.found else None
    first = found.found.first if found.found else None
    kind = cause.kind if cause else ""
    phase = first.phase if first else ""
    layer = (first.layer if first else "") or ""
    told = " ".join((*cause.evidence, cause.fix)) if cause else ""
    text = f"{found.verdict} {told}"
    start = "first weights" in found.verdict or "another model" in found.verdict
    located = (
        (start if fault.phases == ("start",) else phase in fault.phases)
        and (found.step in fault.steps)
        and (not fault.place or fault.place in text or fault.place in layer)
    )
    named = located and (kind in fault.kinds or (start and fault.phases == ("start",)))
    named = named and (not fault.says or any(word in text for word in fault.says))
    wrong = not named and kind not in ("", "unknown") and not found.same
    return {
        "verdict": found.verdict,
        "step": found.step,
        "phase": phase,
        "layer": layer,
        "kind": kind,
        "confidence": cause.confidence if cause else "",
        "told": told[:400],
        "fix": cause.fix if cause else "",
        "advice": found.advice,
        "located": bool(located),
        "named": bool(named),
        "wrong": bool(wrong),
        "same": found.same,
    }


def main() -> None:
    """Run what is asked for, and write a line for each pair."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sources", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--subjects", default=",".join(n for n in SUBJECTS if n not in HELD_OUT))
    parser.add_argument("--faults", default="")
    asked = parser.parse_args()
    wanted = set(filter(None, asked.faults.split(",")))
    with asked.out.open("a") as out:
        for name in asked.subjects.split(","):
            print(name, flush=True)
            subject = SUBJECTS[name]
            pairs: list[Any] = [Fault("clean", ()), Fault("clean, 2 threads", (), threads=2)]
            pairs += subject.faults
            with tempfile.TemporaryDirectory() as work:
                place = Path(work)
                failed = trained(subject, asked.sources, place / "a", place / "run-a", (), 1)
                if failed:
                    msg = f"{name}: {failed}"
                    raise SystemExit(msg)
                for number, fault in enumerate(pairs):
                    if wanted and fault.name not in wanted:
                        continue
                    began = time.time()
                    run = place / f"run-{number}"
                    home = place / f"b{number}"
                    failed = trained(subject, asked.sources, home, run, fault.edits, fault.threads)
                    found: dict[str, Any] = {"subject": name, "fault": fault.name}
                    if failed:
                        found["failed"] = failed
                    else:
                        found |= judged(fault, place / "run-a", run)
                    found["seconds"] = round(time.time() - began, 1)
                    out.write(json.dumps(found) + "\n")
                    out.flush()


if __name__ == "__main__":
    main()
