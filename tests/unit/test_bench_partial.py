"""The task with a long tail, and what the benchmark of partial rollout makes of a run's metrics."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.delitem(sys.modules, request.param, raising=False)
    return import_module(request.param)


@pytest.mark.parametrize("script", ["make_long_tail"], indirect=True)
def test_a_long_answer_begins_with_a_count_from_the_number_of_its_question(
    script: ModuleType,
) -> None:
    asked = script.Counted(script.Question(47, 38), 3)
    assert asked.prompt == "47+38=? 3"
    assert asked.down == "3, 2, 1, "


def line(seconds: float, tokens: float, longest: float, **more: float) -> dict[str, float]:
    return {
        "seconds/step": seconds,
        "seconds/rollout": seconds / 2,
        "seconds/update": seconds / 4,
        "rollout/response_tokens": tokens,
        "rollout/response_length_max": longest,
        **more,
    }


@pytest.mark.parametrize("script", ["bench_partial"], indirect=True)
def test_engine_steps_are_those_of_the_rounds_or_of_the_longest_response(
    script: ModuleType,
) -> None:
    """64 sequences a step; the first two steps are in no mean of seconds."""
    before, behind = ({"evaluation/accuracy": each} for each in (0.25, 0.5))
    plain = [line(9.0, 640, 100), line(9.0, 640, 100), line(4.0, 640, 20), line(2.0, 640, 20)]
    found = script.of_run([before, *plain, behind])
    assert found["seconds of a step"] == 3.0
    assert found["sequences a second"] == pytest.approx(64 / 3)
    assert found["engine steps of a step"] == 60
    assert found["useful"] == pytest.approx(4 * 10 / 240)
    assert found["tokens of a response"] == 10
    # A quarter in four steps of 3 s.
    assert found["accuracy gained a minute"] == pytest.approx(0.25 / 0.2)
    rounds = {"staleness/rounds": 2.0, "staleness/stale_tokens": 0.5}
    partial = [each | rounds for each in plain]
    found = script.of_run([before, *partial, behind])
    assert found["engine steps of a step"] == 2 * script.ROUND_STEPS
    assert found["tokens of earlier weights"] == 0.5
