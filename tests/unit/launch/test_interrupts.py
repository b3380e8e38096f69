"""Ctrl-C and SIGTERM become an error, once, and only inside the block."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mindrl.errors import (
    InterruptedRunError,
    MindrlError,
    ReshardError,
    StopRequestedError,
    WorkerDiedError,
)
from mindrl.launch.interrupts import (
    interrupts_unwrapped,
    signals_as_errors,
    stop_requests,
    trace_requests,
)

BOTH = (signal.SIGINT, signal.SIGTERM)


def interrupted_by(number: signal.Signals) -> None:
    """Send the signal to this process, as Ctrl-C does, and wait for what it does."""
    with signals_as_errors():
        os.kill(os.getpid(), number)
        time.sleep(5)


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_raises_an_error_that_names_it(number: signal.Signals) -> None:
    with pytest.raises(InterruptedRunError, match=rf"^stopped by {number.name}$"):
        interrupted_by(number)


@pytest.mark.parametrize("number", BOTH)
def test_the_former_handlers_are_back_behind_the_block(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in BOTH]
    with signals_as_errors():
        inside = [signal.getsignal(each) for each in BOTH]
    assert all(old is not new for old, new in zip(before, inside, strict=True))
    assert [signal.getsignal(each) for each in BOTH] == before
    with pytest.raises(InterruptedRunError):
        interrupted_by(number)
    assert [signal.getsignal(each) for each in BOTH] == before


def test_a_second_signal_while_the_run_winds_down_is_ignored() -> None:
    wound_down: list[bool] = []

    def run() -> None:
        with signals_as_errors():
            try:
                interrupt_and_wait()
            finally:
                for number in BOTH:
                    os.kill(os.getpid(), number)
                time.sleep(0.05)
                wound_down.append(True)

    def interrupt_and_wait() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    with pytest.raises(InterruptedRunError, match=r"^stopped by SIGTERM$"):
        run()
    assert wound_down == [True]


@pytest.mark.parametrize("number", BOTH)
def test_a_first_signal_stops_at_the_next_check_and_a_second_one_at_once(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = [signal.getsignal(each) for each in BOTH]
    reached: list[str] = []

    def run() -> None:
        with signals_as_errors(), stop_requests() as check_interrupt:
            check_interrupt()
            os.kill(os.getpid(), number)
            reached.append("behind the first signal")
            with pytest.raises(StopRequestedError, match=rf"^stopped by {number.name}$"):
                check_interrupt()
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("behind the second")

    with pytest.raises(InterruptedRunError, match=r"^stopped by SIGTERM$"):
        run()
    assert reached == ["behind the first signal"]
    assert capfd.readouterr().err.count("a second signal stops at once") == 1
    assert [signal.getsignal(each) for each in BOTH] == before


def test_a_blocked_program_is_woken_by_a_signal_of_another_process() -> None:
    code = (
        "import time\n"
        "from mindrl.errors import InterruptedRunError\n"
        "from mindrl.launch.interrupts import signals_as_errors\n"
        "try:\n"
        "    with signals_as_errors():\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "except InterruptedRunError as error:\n"
        "    print(error)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    # A signal that arrives just before Python enters the call is handled only after it.
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] != "S":
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    assert rest == "stopped by SIGINT\n"
    assert process.returncode == 0


def test_an_interrupt_that_compiled_code_wrapped_is_raised_as_itself() -> None:
    interrupt = InterruptedRunError("stopped by SIGINT")
    with pytest.raises(InterruptedRunError) as caught, interrupts_unwrapped():
        raise SystemError("returned a result with an exception set") from interrupt
    assert caught.value is interrupt


def test_another_system_error_stays_what_it_is() -> None:
    with pytest.raises(SystemError, match=r"^bad call$"), interrupts_unwrapped():
        raise SystemError("bad call") from ValueError("not an interrupt")


def test_a_block_that_does_not_stop_within_the_grace_is_interrupted() -> None:
    def run() -> None:
        with signals_as_errors(), stop_requests(grace_seconds=0.3):
            began.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(20)

    began: list[float] = []
    with pytest.raises(InterruptedRunError, match=r"^stopped by SIGTERM$"):
        run()
    assert 0.3 <= time.monotonic() - began[0] < 10


def test_a_block_that_stops_within_the_grace_is_not_interrupted() -> None:
    with signals_as_errors():
        with stop_requests(grace_seconds=1.0) as check_interrupt:
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(StopRequestedError):
                check_interrupt()
        time.sleep(1.2)


def test_each_sigusr1_is_a_request_that_stops_nothing() -> None:
    before, asked = signal.getsignal(signal.SIGUSR1), []
    with trace_requests(lambda: asked.append("a step")):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR1)
    assert asked == ["a step", "a step"]
    assert signal.getsignal(signal.SIGUSR1) == before


def lose_workers(error: MindrlError, *, asks: bool) -> None:
    with signals_as_errors(), stop_requests() as check_interrupt:
        if asks:
            os.kill(os.getpid(), signal.SIGTERM)
        assert check_interrupt.is_requested() is asks
        raise error


@pytest.mark.parametrize("error", [WorkerDiedError("worker-0 died"), ReshardError("no weights")])
def test_workers_that_are_lost_after_a_request_to_stop_end_the_run(error: MindrlError) -> None:
    """New workers would run on as if nobody had asked."""
    with pytest.raises(StopRequestedError, match=f"^stopped by SIGTERM; .*: {error}$"):
        lose_workers(error, asks=True)
    with pytest.raises(type(error)):
        lose_workers(error, asks=False)
