"""Notes about wasted work in a step: one line, shown once."""

import pytest

from mindrl.trainer.step_notes import step_notes

STEP = {
    "rollout/response_tokens": 800.0,
    "rollout/response_length_max": 64.0,
    "seconds/step": 10.0,
    "reward/mean": 0.25,
}


@pytest.mark.parametrize(
    ("metrics", "name", "words"),
    [
        ({"advantage/zero_fraction": 1.0}, "no_signal", "have equal rewards, 0.250 on average."),
        ({"update/grad_norm": 0.0}, "no_gradient", "the gradient is 0, although rewards differ"),
        ({"rollout/cut_fraction": 1.0}, "all_cut", "all were cut off at 64 tokens. Inc"),
        ({"seconds/reward": 8.0}, "slow_rewards", "for 8.0 of 10.0 s: they score 100 tokens a sec"),
    ],
)
def test_each_note_is_given_once_with_its_number(
    metrics: dict[str, float], name: str, words: str
) -> None:
    [(found, text)] = step_notes(STEP | metrics, shown=[])
    assert (found, words in text) == (name, True)
    assert [*step_notes(STEP | metrics, shown=[name])] == []


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"advantage/zero_fraction": 0.99, "update/grad_norm": 1e-9, "rollout/cut_fraction": 0.99},
        {"seconds/reward": 4.9},
        {"seconds/reward": 0.9, "seconds/step": 1.0},
    ],
)
def test_a_step_that_teaches_something_in_time_gets_none(metrics: dict[str, float]) -> None:
    assert [*step_notes(STEP | metrics, shown=[])] == []
