"""Exit codes and printed errors that all programs share."""

import signal

import pytest

from mindrl.errors import ClusterError, ConfigError, ModelError, WorkerDiedError
from mindrl.programs.exits import BAD_CONFIG, FAILED, INTERRUPTED, exit_code

LINES = [f"line {at}" for at in range(30)]


def printed(error: Exception, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    def fail() -> int:
        raise error

    code = exit_code(fail)
    return code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("kind", [ClusterError, WorkerDiedError])
def test_the_log_of_a_lost_worker_is_printed_to_its_last_line_as_one_error(
    kind: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = printed(kind("\n".join(LINES)), capsys)
    assert code == FAILED
    assert lines == ["error: line 0", *(f"        {line}" for line in LINES[1:])]


def test_of_a_wrong_configuration_the_first_ten_reasons_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, lines = printed(ConfigError("\n".join(LINES)), capsys)
    assert code == BAD_CONFIG
    assert lines[:10] == [f"error: {line}" for line in LINES[:10]]
    (rest,) = lines[10:]
    assert rest == "        and 20 more; show them with mindrl check --all"


def test_reasons_of_other_errors_are_all_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = printed(ModelError("\n".join(LINES)), capsys)
    assert (code, lines) == (FAILED, [f"error: {line}" for line in LINES])


def test_a_program_without_handlers_ends_at_ctrl_c_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted() -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    # Tests that a shell starts in the background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert exit_code(interrupted) == INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "error: stopped by SIGINT\n"
