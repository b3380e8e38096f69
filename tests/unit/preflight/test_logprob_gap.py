"""Which log-prob gap a run is warned of."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mindrl.config.run import RunConfig
from mindrl.config.validate import learning_warnings
from mindrl.preflight.derived_numbers import logprob_gap_limit, logprob_gap_text

FLOAT32 = {"megatron_training.bf16": False, "generate_config.dtype": "float32"}
SAMPLING = "generate_config.sampling_config"


@pytest.mark.parametrize(
    ("changes", "dense", "experts"),
    [
        (FLOAT32, 0.01, 0.01),
        (FLOAT32 | {"generate_config.dtype": "bfloat16"}, 0.1, 0.3),
        (FLOAT32 | {"megatron_training.bf16": True}, 0.1, 0.3),
        (FLOAT32 | {"generate_config.quantization": "int8"}, 0.3, 0.3),
        ({"rl_config.max_logprob_gap": 0.5}, 0.5, 0.5),
        (FLOAT32 | {f"{SAMPLING}.top_p": 0.9}, None, None),
        (FLOAT32 | {f"{SAMPLING}.top_k": 50}, None, None),
        (FLOAT32 | {f"{SAMPLING}.top_k": 0}, 0.01, 0.01),
        (FLOAT32 | {f"{SAMPLING}.min_p": 0.01}, None, None),
        ({"rl_config.max_logprob_gap": 0.5, f"{SAMPLING}.top_p": 0.9}, 0.5, 0.5),
    ],
)
def test_the_limit_follows_from_precision_and_experts_unless_it_is_given(
    changes: dict[str, object],
    dense: float | None,
    experts: float | None,
    run_config: Callable[..., RunConfig],
) -> None:
    config = run_config(Path("model"), changes)
    found = [logprob_gap_limit(config, has_experts=each) for each in (False, True)]
    assert found == [dense, experts]


def test_a_dry_run_says_how_the_gap_is_judged_and_why_it_is_not(
    run_config: Callable[..., RunConfig],
) -> None:
    def text(**changes: object) -> str:
        return logprob_gap_text(run_config(Path("model"), changes))

    in_bf16 = {"megatron_training.bf16": True, "rl_config.logprob_gap_steps": 5}
    assert text(**in_bf16) == ("warns beyond 0.1 nats (0.3 with experts), ends after 5 steps")
    assert text(**FLOAT32) == "warns beyond 0.01 nats, ends after 3 steps"
    ahead = {"rl_config.step_order": "asynchronous", "rl_config.use_integrated_worker": False}
    assert text(**FLOAT32 | ahead).endswith("steps; only tokens generated after each sync count")
    cut = {f"{SAMPLING}.top_p": 0.9, f"{SAMPLING}.top_k": 50}
    judged = text(**cut | {"rl_config.max_logprob_gap": 0.5})
    assert judged.endswith(
        "steps; with top_p=0.9, top_k=50 the engine's log-probs are of a truncated distribution"
    )
    assert text(**cut) == (
        "not checked: top_p=0.9, top_k=50 (rl_config.max_logprob_gap sets a limit)"
    )


def test_a_limit_on_a_gap_that_has_a_floor_is_warned_of(
    run_config: Callable[..., RunConfig],
) -> None:
    limit = {"rl_config.max_logprob_gap": 0.05}

    def warned(**changes: object) -> list[str]:
        found = learning_warnings(run_config(Path("model"), changes))
        return [str(each) for each in found if each.field == "rl_config.max_logprob_gap"]

    (line,) = warned(**limit, **{f"{SAMPLING}.top_p": 0.9})
    assert line.startswith("rl_config.max_logprob_gap=0.05: with top_p=0.9 the engine's log-probs")
    # A temperature is that of both sides.
    assert warned(**limit, **{f"{SAMPLING}.temperature": 0.7}) == []
    assert warned(**{f"{SAMPLING}.top_p": 0.9}) == []
