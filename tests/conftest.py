"""Options, shards and profiles shared by every test."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from mpcore._lib.machine import onednn_variables

# For natives and originals, which run without mpcore; other conftest files import frameworks.
os.environ.update(onednn_variables())

pytest.register_assert_rewrite("mpcore.conformance.harness", "mpcore.conformance.suite")

settings.register_profile("ci", deadline=None, derandomize=True, max_examples=200)
settings.register_profile("dev", deadline=None, max_examples=50)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

BACKENDS = ("numpy", "torch", "tensorflow", "mindspore")
HERE = Path(__file__).parent
# First word of a file's name -> the framework that it imports.
FRAMEWORKS = {
    "torch": "torch",
    "apex": "torch",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "mindspore": "mindspore",
}
# Folders whose suites run in one framework a process.
PER_FRAMEWORK = {"backends", "borders", "compat", "divergence", "ranks", "zoo"}
SECONDS = HERE / "seconds.json"
CASES = HERE / "seconds_of_cases.json"
NIGHT = pytest.StashKey[int]()
USUAL = 0.3  # seconds of a test in a file that was never measured


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        choices=BACKENDS,
        default="numpy",
        help="framework that tests/backends runs in; one per process",
    )
    parser.addoption(
        "--shard",
        default="1/1",
        metavar="I/N",
        help="run the I-th of N parts; files stay whole, parts take about equally long",
    )
    parser.addoption(
        "--nightly",
        action="store_true",
        help="run full products and long runs too; docs/testing.md says what stands in by day",
    )
    parser.addoption(
        "--by-day",
        action="store_true",
        help="leave long tests, and most cases of dear ones, to the night; as `make test` does",
    )
    parser.addoption(
        "--measure",
        type=Path,
        metavar="FILE",
        help="write the CPU seconds of each test; `make seconds` cuts shards by them",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep what probes find out of the user's own cache; processes that tests start inherit it."""
    folder = tempfile.TemporaryDirectory(prefix="mpcore-cache-")
    os.environ["MPCORE_CACHE"] = folder.name
    config.add_cleanup(folder.cleanup)
    if config.getoption("--measure"):
        from stopwatch import Stopwatch

        output = config.getoption("--measure").absolute()
        watch = Stopwatch(group_of(config), output, whole=not config.getoption("--by-day"))
        config.pluginmanager.register(watch)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the other frameworks' test files unread: importing one would import its framework."""
    if not collection_path.is_relative_to(HERE) or collection_path.suffix != ".py":
        return None
    folder = collection_path.relative_to(HERE).parts[0]
    chosen = config.getoption("--backend")
    if folder == "zoo" and chosen == "numpy":  # it has no layers of its own
        return True
    framework = FRAMEWORKS.get(collection_path.stem.removeprefix("test_").split("_")[0])
    return True if folder in PER_FRAMEWORK and framework not in (None, chosen) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, not skip, what another process or another night runs."""
    backend, nightly = config.getoption("--backend"), config.getoption("--nightly")
    mine, left = [item for item in items if _runs(item, backend, nightly)], set()
    if config.getoption("--by-day") and not nightly:
        from by_day import left_to_the_night

        means = json.loads(CASES.read_text(encoding="utf-8")).get(group_of(config), {})
        left = left_to_the_night(mine, means)
        mine = [item for item in mine if item not in left]
    shard = files_of_shard(config.getoption("--shard"), mine, group_of(config))
    kept = [item for item in mine if file_of(item.nodeid) in shard]
    config.stash[NIGHT] = sum(file_of(item.nodeid) in shard for item in left)
    if len(kept) < len(items):
        left = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        items[:] = kept


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Say what a day's share leaves out; `suites.py` counts it in its table."""
    left = config.stash.get(NIGHT, 0)
    return [f"{left} left to the night"] if left else []


def _runs(item: pytest.Item, backend: str, nightly: bool) -> bool:
    marker = item.get_closest_marker("backend")
    if marker is not None and marker.args[0] != backend:
        return False
    return nightly or not _by_night(item, backend)


def _by_night(item: pytest.Item, backend: str) -> bool:
    """Return whether `nightly` means this case: in all frameworks, or in one with these values."""
    marker = item.get_closest_marker("nightly")
    if marker is None:
        return False
    given = item.callspec.params if hasattr(item, "callspec") else {}
    return (not marker.args or backend in marker.args) and marker.kwargs.items() <= given.items()


def file_of(nodeid: str) -> str:
    return nodeid.split("::")[0]


def group_of(config: pytest.Config) -> str:
    """Return what else decides which tests of a file run: the framework, and ``-m``."""
    return " ".join(filter(None, (config.getoption("--backend"), config.getoption("markexpr"))))


def files_of_shard(text: str, items: list[pytest.Item], group: str) -> set[str]:
    """Return the files of one shard: the longest first, each to the shard that has least.

    Every process of one suite collects the same tests and so finds the same parts.
    """
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        msg = f"`--shard` must be I/N with 1 <= I <= N, got {text!r}"
        raise pytest.UsageError(msg)
    tests = Counter(file_of(item.nodeid) for item in items)
    known = json.loads(SECONDS.read_text(encoding="utf-8"))
    # A file that was measured in another framework alone takes about as long in this one.
    measured = {file: s for name in BACKENDS for file, s in known.get(name, {}).items()}
    measured |= known.get(group, {})
    seconds = {file: measured.get(file, USUAL * tests[file]) for file in tests}
    loads, parts = [0.0] * int(count), [set() for _ in range(int(count))]
    for file in sorted(seconds, key=lambda file: (-seconds[file], file)):
        least = loads.index(min(loads))
        loads[least] += seconds[file]
        parts[least].add(file)
    return parts[int(index) - 1]


@pytest.fixture
def dynamo() -> Iterator[None]:
    """Let a test compile with torch as the first of its process does.

    torch keeps eight compiled forms of one function and refuses the ninth: a prepared root's
    forward is one function for all models.
    """
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def warm_python() -> Iterator[str]:
    """Yield an interpreter whose processes are forked after the imports; see ``warm.py``."""
    if not hasattr(os, "pidfd_open"):  # Linux alone has it
        yield sys.executable
        return
    from warm import Warm

    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        warm = Warm(Path(folder))
        yield str(warm.python)
        warm.close()


@pytest.fixture(scope="module")
def warm_workers(warm_python: str) -> Iterator[None]:
    """Let this module's tests, and the product in them, start such processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm_python)
        yield
