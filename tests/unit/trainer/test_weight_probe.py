"""The probe of the weights that replicas draw with, in every step that draws ahead.

Whole runs with a stale tensor in a real engine: tests/e2e/test_stale_weights.py.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from memory_replicas import MemoryEngines
from memory_roles import MemoryRoles, config, data, rewards, run_log
from test_replicas_ahead import ahead, length_of, train

from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.batch.sequences import Logprobs, Sequences
from mindrl.config.generate import SamplingConfig
from mindrl.errors import LogprobGapError
from mindrl.layouts.layout import TrainLayout
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.weight_probe import WeightProbe, probed_gap, with_probe


class Reading(MemoryRoles):
    """An actor on some training replicas, with a log-prob for each token."""

    def __init__(self, replicas: int = 1, *, known: float = -1.0) -> None:
        super().__init__()
        self.layouts = {"actor": TrainLayout(tp=1, dp=replicas)}
        self.known = known
        self.read: list[Sequences] = []

    def compute_log_prob(self, sequences: Sequences) -> Logprobs:
        self.read.append(sequences)
        logprobs_BT = sequences.response_mask_BT * torch.tensor(self.known)
        return Logprobs(logprobs_BT=logprobs_BT)


def probed(*replicas: Sequence[tuple[list[int], list[float]]]) -> Rollouts:
    """Lay out the tokens and log-probs of each replica's responses to one prompt."""
    rows = [row for each in replicas for row in each]
    responses = Responses.of(
        [tokens for tokens, _ in rows], [logprobs for _, logprobs in rows], [False] * len(rows)
    )
    laid_out = Rollouts.from_responses([(7, 8)] * len(rows), responses, range(len(rows)))
    numbers = [number for number, each in enumerate(replicas) for _ in each]
    return replace(laid_out, group_B=torch.tensor(numbers))


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_each_replica_that_draws_is_probed_with_the_weights_that_the_trainer_has(
    *, is_asynchronous: bool
) -> None:
    """A token of these replicas is 100 + the version of their weights."""
    engines = MemoryEngines(2, length_of, lambda: 0.001)
    groups = ahead(engines, is_asynchronous=is_asynchronous, train_iters=6, max_staleness=2)
    trained = train(groups, range(1, 7))
    # In the last steps all may be drawn already; before them groups begin in each.
    for step, each in enumerate(trained.probed[: 3 if is_asynchronous else 5], start=1):
        assert each is not None
        assert set(each.tokens_BT[each.response_mask_BT].tolist()) == {100 + step - 1}
        assert each.group_B.tolist() == sorted(each.group_B.tolist())
    assert len({*engines.probed}) == len(engines.probed)


def test_a_probe_is_a_few_tokens_of_the_whole_distribution_with_seeds_of_its_own() -> None:
    groups = ahead(MemoryEngines(1, length_of), train_iters=2)
    cut = SamplingConfig(temperature=0.7, max_tokens=100, top_p=0.9, top_k=5, min_p=0.1)
    sampling = replace(groups.pool.answering.sampling, section=cut, is_seeded=False)
    answering = replace(groups.pool.answering, sampling=sampling)
    probe, again, later = (WeightProbe.of(answering, 1, version) for version in (3, 3, 4))
    assert probe.sampling.section == SamplingConfig(temperature=0.7, max_tokens=8)
    assert probe.sampling.is_seeded
    assert probe.requests == again.requests
    # Steps of two prompts: the one behind version 3 begins with the seventh.
    assert [request.token_ids[0] - 1 for request in probe.requests] == [*range(6, 14)]
    seeds = [request.seed for each in (probe, later) for request in each.requests]
    assert len({*seeds}) == 16
    short = replace(groups.pool.answering.sampling, section=SamplingConfig(max_tokens=5))
    assert WeightProbe.of(replace(answering, sampling=short), 1, 0).sampling.section.max_tokens == 5


def test_the_gap_of_a_probe_is_that_of_the_worst_replica_and_equal_tokens_are_read_once() -> None:
    sound, stale = [([1, 2], [-1.0, -1.0]), ([3], [-1.1])], [([1, 2], [-1.4, -1.0]), ([4], [-1.1])]
    roles = Reading(replicas=2)
    found = probed_gap(roles, probed(sound, sound, stale, sound))
    assert found == pytest.approx(
        {"logprob_gap/mean": 0.5 / 3, "logprob_gap/max": 0.4, "logprob_gap/probe_tokens": 12}
    )
    # Three different responses.
    (read,) = roles.read
    assert sorted(read.tokens_BT[:3].tolist()) == [[7, 8, 1, 2], [7, 8, 3, 0], [7, 8, 4, 0]]
    assert len(read) == 3
    assert probed_gap(roles, None) == {}


def test_a_probe_without_a_log_prob_counts_as_one_beyond_the_limit() -> None:
    found = probed_gap(Reading(known=math.nan), probed([([1, 2], [-1.0, -1.0])]))
    assert found == {"nonfinite/logprob_gap": 2.0, "logprob_gap/probe_tokens": 2.0}
    both = with_probe({"nonfinite/logprob_gap": 1.0, "logprob_gap/mean": 0.1}, found)
    assert both["nonfinite/logprob_gap"] == 3.0
    assert both["logprob_gap/mean"] == 0.1


def test_a_step_is_judged_by_the_larger_of_its_own_gap_and_that_of_its_probe() -> None:
    step = {"logprob_gap/mean": 0.1, "logprob_gap/max": 0.9, "loss": 1.0}
    probe = {"logprob_gap/mean": 0.2, "logprob_gap/max": 0.3, "logprob_gap/probe_tokens": 64.0}
    joined = {"logprob_gap/mean": 0.2, "logprob_gap/max": 0.9, "logprob_gap/probe_tokens": 64.0}
    assert with_probe(step, probe) == {"loss": 1.0, **joined}
    assert with_probe({"loss": 1.0}, probe) == {"loss": 1.0, **probe}
    assert with_probe(step, {}) == step


@pytest.mark.parametrize("order", ["asynchronous", "one_step_off"])
@pytest.mark.parametrize("old", ["recompute", "from_update"])
def test_a_run_whose_replica_keeps_old_weights_ends_with_its_third_step_in_a_row(
    order: str, old: str, tmp_path: Path
) -> None:
    """From the second sync on the trainer's log-probs are another policy's."""

    class Learning(Reading):
        def compute_log_prob(self, sequences: Sequences) -> Logprobs:
            self.known = -1.5 if self.calls.count("update") >= 2 else -1.0
            return super().compute_log_prob(sequences)

    chosen = config(
        step_order=order,
        old_log_probs=old,
        mini_batch_size=2,
        train_iters=8,
        max_staleness=2,
        use_integrated_worker=False,
    )
    roles = Learning()
    roles.keeps_logprobs = old == "from_update"
    log = run_log(tmp_path, 8)
    trainer = PolicyTrainer(chosen, data(), roles, rewards(roles), log, max_logprob_gap=0.1)
    trainer.source.generation.engines = MemoryEngines(2, lambda _: 2)
    with pytest.raises(LogprobGapError, match=r"^step 5: .* 0\.5 nats on average"):
        trainer.run()
