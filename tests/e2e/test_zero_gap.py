"""Runs with batch-invariant kernels: engine and trainer have equal log-probs, to the bit."""

from pathlib import Path

import pytest
from program import start_program

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


@pytest.mark.parametrize("backend", ["megatron:d2", "archon:d2"])
def test_every_log_prob_of_the_engine_is_the_trainers(
    backend: str, tiny_model: Path, tmp_path: Path
) -> None:
    asked = [f"actor_config.load={tiny_model}", f"actor_config.backend={backend}"]
    asked += ["megatron_training.train_iters=2", "rl_config.test_freq=0"]
    asked += ["generate_config.batch_invariant=true"]
    asked += ["generate_config.sampling_config.temperature=0.8"]
    run = start_program(tmp_path / "run", asked)
    assert run.process.wait(timeout=600) == 0, run.text()
    assert [step["logprob_gap/max"] for step in run.steps()] == [0.0, 0.0]
    assert all(step["rollout/response_tokens"] > 100 for step in run.steps())
