"""Whole runs whose steps leave responses under way."""

from pathlib import Path

import pytest
from program import start_program
from test_resume import outcome

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

KEYS = (
    "megatron_training.train_iters=3",
    "megatron_training.keep_rollouts=3",
    "megatron_training.save_interval=3",
    "rl_config.test_freq=0",
)


def test_a_partial_run_with_staleness_0_is_the_plain_run_to_the_bit(
    tiny_model: Path, tmp_path: Path
) -> None:
    found = []
    for name, more in (
        ("plain", ()),
        ("partial", ("rl_config.partial_rollout=true", "rl_config.max_staleness=0")),
    ):
        asked = [f"actor_config.load={tiny_model}", *KEYS, *more]
        run = start_program(tmp_path / name, asked)
        assert run.process.wait(timeout=600) == 0, run.text()
        of_run = outcome(run.folder)
        for line in of_run["metrics"]:
            if "rollout/response_tokens" not in line:
                continue
            rounds = line.pop("staleness/rounds", None)
            assert (rounds is None) == (name == "plain")
            for key in [key for key in line if key.startswith("staleness/")]:
                assert line.pop(key) == 0.0
        found.append(of_run)
    plain, partial = found
    assert plain == partial
