"""SIGINT inside a block that holds it: real signals to this process."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from planted import PlantedError, lines

from mpcore._lib import interrupts
from mpcore._lib.interrupts import Held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

posix = pytest.mark.skipif(os.name != "posix", reason="a process cannot send itself SIGINT here")


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    """Begin with Python's own handler, and prove that it is there again."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def interrupt() -> None:
    """Send SIGINT, and let Python notice."""
    signal.raise_signal(signal.SIGINT)
    time.sleep(0)


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    done = []

    def run() -> None:
        with Held():
            interrupt()
            interrupt()
            done.append("block")
        done.append("never")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert done == ["block"]
    with Held():
        done.append("quiet")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_outermost_block_delivers() -> None:
    done = []

    def run() -> None:
        with Held():
            with Held():
                interrupt()
            done.append("after the inner one")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert done == ["after the inner one"]


def test_a_failing_block_keeps_its_error_beside_the_interrupt() -> None:
    def run(*, interrupted: bool) -> None:
        with Held():
            if interrupted:
                interrupt()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        run(interrupted=False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt) as caught:
        run(interrupted=True)
    assert isinstance(caught.value.__context__, ZeroDivisionError)


def test_the_first_interrupt_after_the_block_is_the_users() -> None:
    with Held():
        pass
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_a_handler_of_the_user_is_called_once_with_a_frame() -> None:
    calls: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: calls.append((number, frame)))
    mine = signal.getsignal(signal.SIGINT)
    with Held():
        interrupt()
        interrupt()
        assert calls == []
    assert [number for number, _ in calls] == [signal.SIGINT]
    assert calls[0][1].f_code is sys._getframe().f_code
    assert signal.getsignal(signal.SIGINT) is mine
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_handler_that_the_block_sets_stays() -> None:
    calls: list[int] = []

    def mine(number: int, frame: object) -> None:
        calls.append(number)

    with Held():
        interrupt()
        signal.signal(signal.SIGINT, mine)
    assert calls == [signal.SIGINT]
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is mine


def test_an_error_at_any_line_of_it_gives_the_handler_back() -> None:
    held = Held(later=True)

    def block() -> None:
        with held:
            held.now()

    def at_once() -> None:
        with Held():
            pass

    left = 0
    for body in (block, at_once):
        with lines([interrupts.__file__], None) as every:
            body()
        for at in range(len(every)):
            with pytest.raises(PlantedError), lines([interrupts.__file__], at):
                body()
            left += signal.getsignal(signal.SIGINT) is not signal.default_int_handler
            block()  # the same object takes away what it has left there
            if body is block:
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            signal.signal(signal.SIGINT, signal.default_int_handler)
    assert left <= 2  # the first line of its end, before which nothing can stand
    assert pressed(block) == ["came"]


def pressed(body: Callable[[], None]) -> list[str]:
    """Return what an interrupt does where nothing holds it any more."""
    body()
    try:
        interrupt()
    except KeyboardInterrupt:
        return ["came"]
    return []


def test_an_interrupt_that_came_twice_is_not_delivered_by_the_next_block() -> None:
    held = Held(later=True)

    def twice() -> None:
        with held:
            held.now()
            interrupt()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # nobody is there to be told

    twice()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with held:
        held.now()


def test_a_handler_that_was_kept_from_inside_passes_on() -> None:
    with Held():
        kept = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, kept)  # as who puts "the old one" back does
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    with pytest.raises(KeyboardInterrupt), Held():
        interrupt()
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_is_no_function_stays(handler: signal.Handlers) -> None:
    signal.signal(signal.SIGINT, handler)
    with Held():
        assert signal.getsignal(signal.SIGINT) is handler
        if handler is signal.SIG_IGN:
            interrupt()
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is handler


def test_another_thread_holds_nothing() -> None:
    ready, go = threading.Event(), threading.Event()

    def work() -> None:
        with Held():
            ready.set()
            go.wait(300)

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(300)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    go.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_block_that_hangs_can_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: clock[0])
    reached = []

    def run() -> None:
        with Held():
            clock[0] += 60  # long, but nobody has asked yet
            interrupt()
            clock[0] += 0.9
            interrupt()
            reached.append("impatient")
            clock[0] += 0.2
            interrupt()
            reached.append("never")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert reached == ["impatient"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@posix
def test_the_thread_that_forks_is_the_main_one_of_the_child() -> None:
    answers: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            held = interrupts._MAIN[0] == threading.get_ident() == threading.main_thread().ident
            os._exit(0 if held else 1)
        answers.append(os.waitpid(child, 0)[1])

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    assert answers == [0]


@posix
def test_what_a_c_library_put_there_stays_and_still_leads_here(tmp_path: Any) -> None:
    seen: list[str] = []

    def run() -> None:
        with Held():
            interrupt()
            seen.append("block")

    with (tmp_path / "trace").open("w+") as trace:
        # Behind Python's back; of this thread alone, whatever others the test runner keeps.
        faulthandler.register(signal.SIGINT, file=trace, all_threads=False, chain=True)
        try:
            for body in (run, run, interrupt):
                with pytest.raises(KeyboardInterrupt):
                    body()
        finally:
            faulthandler.unregister(signal.SIGINT)
        trace.seek(0)
        assert trace.read().count("most recent call first") == 3
    assert seen == ["block", "block"]


@posix
def test_real_interrupts_at_any_moment_tear_no_block() -> None:
    # A second thread sends them, so that they come between any two bytecodes.
    first, second, caught, armed = 0, 0, 0, False

    def raise_once(number: int, frame: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    main, stop = threading.get_ident(), threading.Event()

    def send() -> None:
        while not stop.wait(0.0002):
            signal.pthread_kill(main, signal.SIGINT)

    signal.signal(signal.SIGINT, raise_once)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        while caught < 200:
            try:
                armed = True
                with Held():
                    first += 1
                    for _ in range(50):
                        second += 1
                    second -= 49
                armed = False
            except KeyboardInterrupt:
                caught += 1
    finally:
        armed = False
        stop.set()
        sender.join()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert first == second > 0
