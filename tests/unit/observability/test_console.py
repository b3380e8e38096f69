"""What a pseudo-terminal and a log file receive."""

import fcntl
import io
import os
import pty
import re
import struct
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.panel import Panel

from mindrl.observability.console import StepConsole
from mindrl.observability.live_bar import sparkline

METRICS = {
    "reward/mean": 0.7126,
    "update/policy_loss": -0.00123,
    "logprob_gap/mean": 2.1e-7,
    "throughput/response_tokens_per_second": 2314.4,
    "seconds/rollout": 1.234,
    "seconds/update": 0.8,
}


def on_a_terminal(
    show: Callable[[StepConsole], None],
    total_steps: int,
    width: int = 100,
    encoding: str = "utf-8",
    until: str = "",
) -> str:
    """Return what a terminal of this width receives; the console stays until a pattern is there."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    received = bytearray()

    def read() -> None:
        while True:
            try:
                received.extend(os.read(master, 65536))
            except OSError:  # the other end is closed
                return

    reader = threading.Thread(target=read)
    reader.start()
    with (
        os.fdopen(slave, "w", encoding=encoding) as stream,
        StepConsole(total_steps, stream) as console,
    ):
        show(console)
        deadline = time.monotonic() + 30
        while not re.search(until, without_escapes(received.decode(errors="ignore"))):
            assert time.monotonic() < deadline, received
            time.sleep(0.05)
    reader.join()
    os.close(master)
    return received.decode()


def without_escapes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def test_a_log_file_gets_one_plain_line_per_step_with_a_dash_for_the_missing_metric() -> None:
    stream = io.StringIO()
    with StepConsole(60, stream) as console:
        console.step(12, METRICS)
        console.evaluation(12, 0.5)
        console.note("saved")
    assert stream.getvalue() == (
        "step 12/60  reward 0.713  loss -0.0012  gap 2.1e-07  tok/s 2314"
        "  rollout s 1.2  update s 0.8  step s -  left -\n"
        "eval 12/60  accuracy 0.500\n"
        "saved\n"
    )


def test_the_share_of_rewards_that_failed_ends_the_line_where_some_did() -> None:
    stream = io.StringIO()
    with StepConsole(60, stream) as console:
        console.step(12, METRICS | {"reward/failed_share": 0.25})
    assert "  step s -  failed 25%  left -\n" in stream.getvalue()


def test_one_answer_of_512_that_timed_out_is_counted_and_no_share_of_0() -> None:
    stream = io.StringIO()
    with StepConsole(60, stream) as console:
        console.step(12, METRICS | {"reward/failed_share": 1 / 512, "reward/timeouts": 1.0})
        console.step(13, METRICS | {"reward/timeouts": 0.0})
    first, second = stream.getvalue().splitlines()
    assert "  step s -  failed <1%  timed out 1  left -" in first
    assert "timed out" not in second


def test_the_tokens_of_a_probe_follow_the_gap_that_they_are_compared_for() -> None:
    stream = io.StringIO()
    with StepConsole(30, stream) as console:
        console.step(12, METRICS | {"logprob_gap/probe_tokens": 64.0})
    assert "  step s -  probed tokens 64  left -\n" in stream.getvalue()


def test_a_metric_that_is_no_number_is_shown_as_such() -> None:
    stream = io.StringIO()
    with StepConsole(9, stream) as console:
        console.step(1, {"update/policy_loss": float("nan"), "reward/mean": 1.0})
    assert stream.getvalue().startswith("step 1/9  reward 1.000  loss nan  gap -  tok/s -  ")


def test_a_plain_line_is_in_the_file_as_soon_as_its_step_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with path.open("w") as stream, StepConsole(2, stream) as console:
        console.step(1, METRICS)
        assert path.read_text().startswith("step 1/2  reward 0.713")


def test_from_the_second_step_on_the_time_left_is_shown_even_if_a_step_comes_again() -> None:
    stream = io.StringIO()
    with StepConsole(3, stream) as console:
        for step in (1, 2, 1, 2, 3):
            console.step(step, {})
    left = [line.rsplit("left ")[1] for line in stream.getvalue().splitlines()]
    assert left == ["-", "0:00:00", "-", "0:00:00", "0:00:00"]


@pytest.mark.usefixtures("_terminal")
def test_a_terminal_shows_header_rows_and_a_bar_and_gets_its_cursor_back() -> None:
    def show(console: StepConsole) -> None:
        for step in range(1, 4):
            console.step(step, METRICS)
        console.evaluation(3, 0.25)

    raw = on_a_terminal(show, total_steps=3)
    assert raw.index("\x1b[?25l") < raw.rindex("\x1b[?25h")
    lines = [line.rstrip() for line in without_escapes(raw).replace("\r", "\n").split("\n")]
    header = "step   reward     loss      gap    tok/s  rollout s  update s   step s"
    assert lines.count(header) == 1
    for step in range(1, 4):
        row = f" {step}/3    0.713  -0.0012  2.1e-07     2314        1.2       0.8        -"
        assert lines.count(row) == 1
    assert lines.count("eval 3/3  accuracy 0.250") == 1
    assert any(line.startswith("training ") and "3/3" in line for line in lines)


@pytest.mark.usefixtures("_terminal")
def test_the_default_row_of_a_1000_step_run_fits_a_terminal_of_80_columns() -> None:
    def show(console: StepConsole) -> None:
        console.step(1000, METRICS)

    lines = without_escapes(on_a_terminal(show, 1000, width=80)).replace("\r", "\n").split("\n")
    (row,) = [line for line in lines if "2.1e-07" in line]
    assert row.split() == ["1000/1000", "0.713", "-0.0012", "2.1e-07", "2314", "1.2", "0.8", "-"]


@pytest.mark.usefixtures("_terminal")
def test_the_header_comes_again_after_20_rows() -> None:
    def show(console: StepConsole) -> None:
        for step in range(1, 42):
            console.step(step, METRICS)

    assert without_escapes(on_a_terminal(show, 41)).count("reward     loss") == 3


@pytest.mark.usefixtures("_terminal")
def test_a_failing_step_stops_the_bar_and_shows_the_cursor_again() -> None:
    def show(console: StepConsole) -> None:
        console.step(1, METRICS)
        raise RuntimeError("worker died")

    def guarded(console: StepConsole) -> None:
        with pytest.raises(RuntimeError, match="worker died"), console:
            show(console)

    raw = on_a_terminal(guarded, 5)
    assert raw.rindex("\x1b[?25h") > raw.rindex("\x1b[?25l")


@pytest.mark.usefixtures("_terminal")
def test_a_note_with_escapes_and_markup_reaches_the_terminal_as_harmless_text() -> None:
    hostile = "\x1b[2J\x1b]0;title\x07 [bold]x[/bold] [link=http://a]\x00"
    raw = on_a_terminal(lambda console: console.note(hostile), 5)
    assert r"\x1b[2J\x1b]0;title\x07 [bold]x[/bold] [link=http://a]\x00" in raw
    assert "\x1b[2J" not in raw
    assert "\x07" not in raw


def test_a_terminal_that_calls_itself_dumb_gets_plain_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    raw = on_a_terminal(lambda console: console.step(1, METRICS), 5)
    assert raw.startswith("step 1/5  reward 0.713")
    assert "\x1b" not in raw


def test_a_path_that_no_terminal_folds_is_in_one_piece_and_the_box_no_wider_than_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    path = "/runs/" + "a" * 200
    stream = io.StringIO()
    StepConsole(1, stream).show(Panel(path, expand=False), folds=False)
    top, line, bottom = stream.getvalue().splitlines()
    assert line.strip("│ ") == path
    assert len(top) == len(line) == len(bottom) == len(path) + 4


def test_a_stream_that_takes_nothing_any_more_ends_no_run() -> None:
    calls: list[str] = []

    def run() -> None:
        with Path("/dev/full").open("w", buffering=1) as stream:
            console = StepConsole(2, stream)
            console.step(1, METRICS)
            console.evaluation(2, 0.5)
            console.show(Panel("a sample"))
            calls.append("the run goes on")

    # Only whoever closes the stream hears of it.
    with pytest.raises(OSError, match="No space left"):
        run()
    assert calls == ["the run goes on"]


def test_a_line_of_values_goes_from_the_least_to_the_largest_with_gaps_for_what_is_not_finite() -> (
    None
):
    assert sparkline([0.0, 0.5, 1.0, 0.0]) == "▁▅█▁"
    assert sparkline([-7.0, float("nan"), 7.0, float("inf")]) == "▁ █ "
    assert sparkline([0.25, 0.25]) == "▅▅"
    assert sparkline([]) == ""


@pytest.mark.usefixtures("_terminal")
@pytest.mark.parametrize("width", [80, 120])
def test_below_the_bar_are_stage_rewards_workers_and_memory_of_the_newest_step(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    memory = {"memory/workers": 2.0, "memory/rss_bytes_mean": 1.0 * 2**30}
    peaks = {"memory/device_peak_bytes_max": 2.0**29}

    def show(console: StepConsole) -> None:
        for step in range(1, 51):
            console.step(step, METRICS | memory | peaks | {"reward/mean": step / 100})
        console.stage("rollout")

    # On a busy machine a second may be missed.
    raw = on_a_terminal(show, 60, width, until=r"rollout 0:00:0[1-9]  reward ")
    lines = without_escapes(raw).replace("\r", "\n").split("\n")
    found = [line for line in lines if line.startswith("rollout ")]
    drawn = "".join(re.findall("[▁-█]", found[0]))
    end = "2 workers  device 0.5 GiB  host 2.0 GiB"
    assert re.fullmatch(rf"rollout 0:00:0\d  reward {drawn} 0\.500  {end}", found[0])
    # As many of the newest steps as there is room for, 40 at the most.
    assert len(drawn) == {80: 9, 120: 40}[width]
    assert (drawn[0], drawn[-1]) == ("▁", "█")
    assert max(map(len, lines)) <= width
    assert any(line.startswith("training ") and "50/60" in line for line in lines)


@pytest.mark.usefixtures("_terminal")
def test_a_terminal_that_has_no_blocks_gets_the_number_alone() -> None:
    def show(console: StepConsole) -> None:
        console.step(1, METRICS)
        console.stage("update")

    on_a_terminal(show, 5, encoding="ascii", until=r"update 0:00:0\d  reward 0\.713")


def test_stages_are_no_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with StepConsole(5, stream) as console:
        for stage in ("rollout", "update", ""):
            console.stage(stage)
    assert stream.getvalue() == ""
