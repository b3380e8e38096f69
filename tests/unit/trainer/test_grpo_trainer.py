"""The order of a step, and the checks that end a run.

The roles below answer from memory and write down each call: what a step computes is proved with
real models in tests/distributed and tests/e2e.
"""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.batch.experience import Minibatch, MinibatchPlan, Scored, Sequences
from mindrl.batch.prompts import Prompt, Sampling
from mindrl.batch.rollouts import Response, Rollouts
from mindrl.data.order import PromptOrder
from mindrl.errors import LogprobGapError, MindrlError
from mindrl.observability.console import StepConsole
from mindrl.observability.trackers import JsonlTracker, Trackers
from mindrl.rewards.scorer import Scores
from mindrl.trainer.grpo_trainer import GrpoData, GrpoRoles, GrpoSettings, GrpoTrainer
from mindrl.trainer.journal import Journal, Outcome, RunFolder

PROMPTS = tuple(
    Prompt(uid=uid, token_ids=(uid + 1, 9), text=f"prompt {uid}", reference=f"answer {uid}")
    for uid in range(4)
)
SAMPLING = Sampling(temperature=1.0, max_tokens=2, stop_token_ids=(1,), samples_per_prompt=2)
ROLLOUT_LOGPROB = -1.0


class MemoryRoles:
    """Policy, reference, workers and scorer in one, with one list of calls."""

    def __init__(self, *, gap: float = 0.0, grad_norm: float = 0.5) -> None:
        self.calls: list[str] = []
        self.asked: list[tuple[list[int], Sampling, int]] = []
        self.minibatches: list[Minibatch] = []
        self.gap = gap
        self.grad_norm = grad_norm

    @contextmanager
    def rollout_phase(self) -> Iterator[None]:
        self.calls.append("rollout phase")
        yield
        self.calls.append("end of phase")

    @contextmanager
    def train_phase(self) -> Iterator[None]:
        self.calls.append("train phase")
        yield
        self.calls.append("end of phase")

    def generate_sequences(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, step: int
    ) -> Rollouts:
        """Answer with two tokens, the second of which counts the samples."""
        self.calls.append("generate")
        self.asked.append(([prompt.uid for prompt in prompts], sampling, step))
        group = [index for index in range(len(prompts)) for _ in range(sampling.samples_per_prompt)]
        responses = [
            Response(
                token_ids=(20, 30 + row % sampling.samples_per_prompt),
                logprobs=(ROLLOUT_LOGPROB, ROLLOUT_LOGPROB),
                finished=True,
            )
            for row in range(len(group))
        ]
        return Rollouts.from_responses([prompts[i].token_ids for i in group], responses, group)

    def compute_log_prob(self, sequences: Sequences) -> Scored:
        self.calls.append("log-probs")
        return self._scored(sequences, ROLLOUT_LOGPROB - self.gap)

    def compute_ref_log_prob(self, sequences: Sequences) -> Scored:
        self.calls.append("reference log-probs")
        return self._scored(sequences, -3.0)

    def update(self, minibatch: Minibatch) -> dict[str, float]:
        self.calls.append("update")
        self.minibatches.append(minibatch)
        return {"policy_loss": float(len(self.minibatches)), "grad_norm": self.grad_norm}

    def export(self, folder: Path) -> None:
        self.calls.append(f"export {folder.name}")

    def flush_metrics(self) -> dict[str, float]:
        self.calls.append("flush")
        return {"bytes/reshard_sent": 7.0}

    def score(self, responses: Sequence[str], references: Sequence[str]) -> Scores:
        """Reward 1 where the second token is 31, 0 elsewhere."""
        assert len(references) == len(responses)
        self.calls.append("score")
        right = tuple(float(response.endswith("31")) for response in responses)
        return Scores(rewards=right, parts={"exact": right}, timeouts=0, crashes=0, errors=0)

    @staticmethod
    def _scored(sequences: Sequences, logprob: float) -> Scored:
        logprobs_BT = sequences.response_mask_BT * torch.tensor(logprob)
        return Scored(logprobs_BT=logprobs_BT, entropy_BT=torch.zeros_like(logprobs_BT))


def decode(token_ids: list[int]) -> str:
    return " ".join(map(str, token_ids))


def build(
    root: Path, roles: MemoryRoles, *, test: Sequence[Prompt] = (), **settings: Any
) -> GrpoTrainer:
    chosen: dict[str, Any] = {
        "steps": 1,
        "test_freq": 0,
        "save_interval": 0,
        "with_reference": False,
        "epochs": 1,
    } | settings
    folder = RunFolder(root=root)
    journal = Journal(
        folder,
        Outcome(model=root / "model"),
        StepConsole(chosen["steps"], io.StringIO()),
        Trackers([JsonlTracker(folder.metrics)]),
    )
    return GrpoTrainer(
        GrpoSettings(
            steps=chosen["steps"],
            prompts_per_step=2,
            sampling=SAMPLING,
            minibatches=MinibatchPlan(
                prompts_per_update=1,
                epochs=chosen["epochs"],
                token_weights=token_mean_weights,
                generator=None,
            ),
            accuracy_reward="exact",
            test_freq=chosen["test_freq"],
            save_interval=chosen["save_interval"],
            max_logprob_gap=0.1,
            log_samples=3,
        ),
        GrpoData(train=PROMPTS, test=test, order=PromptOrder(4, 1, shuffle=True), decode=decode),
        GrpoRoles(
            policy=roles,
            reference=roles if chosen["with_reference"] else None,
            workers=roles,
            scorer=roles,
        ),
        journal,
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_step_rolls_out_rates_scores_and_updates_in_this_order(tmp_path: Path) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles, with_reference=True).run(tmp_path / "model")
    assert roles.calls == [
        "rollout phase",
        "generate",
        "end of phase",
        "score",
        "log-probs",
        "reference log-probs",
        "train phase",
        "update",
        "update",
        "end of phase",
        "flush",
        "export model",
    ]


def test_without_a_reference_none_is_asked_and_the_minibatches_carry_none(tmp_path: Path) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles).run(tmp_path / "model")
    assert "reference log-probs" not in roles.calls
    assert [minibatch.ref_logprobs_BT for minibatch in roles.minibatches] == [None, None]


def test_updates_get_log_probs_of_the_trainer_and_advantages_on_response_tokens_only(
    tmp_path: Path,
) -> None:
    roles = MemoryRoles(gap=0.05)
    build(tmp_path, roles, with_reference=True, epochs=2).run(tmp_path / "model")
    # Two prompts, one an update, twice.
    assert len(roles.minibatches) == 4
    for minibatch in roles.minibatches:
        assert minibatch.response_mask_BT.tolist() == [[False, False, True, True]] * 2
        assert minibatch.old_logprobs_BT[:, 2:].flatten().tolist() == pytest.approx([-1.05] * 4)
        assert minibatch.ref_logprobs_BT is not None
        assert minibatch.ref_logprobs_BT[:, 2:].flatten().tolist() == [-3.0] * 4
        # Rewards 0 and 1: each is 0.5 from the mean, the standard deviation is sqrt(1/2).
        low, high = minibatch.advantages_BT
        assert low.tolist() == pytest.approx([0, 0, -(0.5**0.5), -(0.5**0.5)], abs=1e-4)
        assert high.tolist() == pytest.approx([0, 0, 0.5**0.5, 0.5**0.5], abs=1e-4)


def test_steps_take_prompts_in_the_order_of_the_data_and_count_from_1(tmp_path: Path) -> None:
    roles = MemoryRoles()
    trainer = build(tmp_path, roles, steps=3)
    trainer.run(tmp_path / "model")
    order = trainer.data.order
    assert [(uids, step) for uids, _, step in roles.asked] == [
        (list(order.indices(0, 2)), 1),
        (list(order.indices(1, 2)), 2),
        (list(order.indices(2, 2)), 3),
    ]
    assert {sampling for _, sampling, _ in roles.asked} == {SAMPLING}


def test_metrics_of_a_step_join_all_parts_under_their_names(tmp_path: Path) -> None:
    build(tmp_path, MemoryRoles(gap=0.05)).run(tmp_path / "model")
    (step,) = lines(tmp_path / "metrics.jsonl")
    assert step["step"] == 1
    assert step["rollout/response_tokens"] == 8.0
    assert step["reward/mean"] == 0.5
    assert step["update/policy_loss"] == 1.5
    assert step["update/grad_norm"] == 0.5
    assert step["bytes/reshard_sent"] == 7.0
    assert step["logprob_gap/mean"] == pytest.approx(0.05, abs=1e-7)
    assert step["logprob_gap/max"] == pytest.approx(0.05, abs=1e-7)
    assert step["advantage/zero_fraction"] == 0.0
    assert step["throughput/response_tokens_per_second"] == pytest.approx(
        8.0 / step["seconds/step"]
    )
    stages = ("rollout", "reward", "log_prob", "update")
    assert sum(step[f"seconds/{stage}"] for stage in stages) <= step["seconds/step"]


def test_samples_of_a_step_are_as_many_as_asked_for_with_text_and_reward(tmp_path: Path) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles).run(tmp_path / "model")
    samples = lines(tmp_path / "samples.jsonl")
    first = roles.asked[0][0][0]
    assert len(samples) == 3
    assert [(sample["response"], sample["reward"]) for sample in samples] == [
        ("20 30", 0.0),
        ("20 31", 1.0),
        ("20 30", 0.0),
    ]
    assert samples[0]["prompt"] == f"prompt {first}"
    assert samples[0]["reference"] == f"answer {first}"
    assert samples[0]["response_tokens"] == 2


@pytest.mark.parametrize(
    ("test_freq", "evaluated"), [(0, [0, 4]), (1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [0, 3, 4])]
)
def test_evaluations_come_before_every_so_many_steps_and_once_at_the_end(
    test_freq: int, evaluated: list[int], tmp_path: Path
) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles, test=PROMPTS[:2], steps=4, test_freq=test_freq).run(tmp_path / "model")
    accuracies = [line for line in lines(tmp_path / "metrics.jsonl") if len(line) == 2]
    assert [line["step"] for line in accuracies] == evaluated
    greedy = [(step, sampling) for _, sampling, step in roles.asked if sampling.temperature == 0]
    assert [step for step, _ in greedy] == evaluated
    assert {(sampling.samples_per_prompt, sampling.max_tokens) for _, sampling in greedy} == {
        (1, 2)
    }


def test_without_held_out_prompts_nothing_is_evaluated(tmp_path: Path) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles, test_freq=1).run(tmp_path / "model")
    assert len(roles.asked) == 1
    assert not (tmp_path / "evaluations.jsonl").read_text("utf-8")


@pytest.mark.parametrize(("save_interval", "exports"), [(0, 1), (1, 5), (2, 3), (5, 1)])
def test_the_model_is_exported_every_so_many_steps_and_once_at_the_end(
    save_interval: int, exports: int, tmp_path: Path
) -> None:
    roles = MemoryRoles()
    trainer = build(tmp_path, roles, steps=5, save_interval=save_interval)
    trainer.run(tmp_path / "model")
    assert roles.calls.count("export model") == exports
    assert roles.calls[-1] == "export model"
    assert trainer.journal.outcome.model_saved


@pytest.mark.parametrize(("gap", "shown"), [(0.5, "0.5"), (-0.5, "0.5"), (float("nan"), "nan")])
def test_a_gap_beyond_the_limit_ends_the_run_at_its_step_with_the_step_on_record(
    gap: float, shown: str, tmp_path: Path
) -> None:
    roles = MemoryRoles(gap=gap)
    trainer = build(tmp_path, roles, steps=3)
    with pytest.raises(LogprobGapError) as caught:
        trainer.run(tmp_path / "model")
    assert str(caught.value) == (
        f"step 1: rollout and training log-probs differ by {shown} nats on average, "
        "rl_config.max_logprob_gap=0.1: the rollout engine has other weights, "
        "another temperature or another precision than the trainer"
    )
    assert len(lines(tmp_path / "metrics.jsonl")) == 1
    assert "export model" not in roles.calls
    assert not trainer.journal.outcome.model_saved


@pytest.mark.parametrize("grad_norm", [float("nan"), float("inf")])
def test_a_metric_that_is_no_finite_number_ends_the_run_and_is_named(
    grad_norm: float, tmp_path: Path
) -> None:
    roles = MemoryRoles(grad_norm=grad_norm)
    with pytest.raises(MindrlError) as caught:
        build(tmp_path, roles, steps=3).run(tmp_path / "model")
    assert str(caught.value) == "step 1: not a finite number: update/grad_norm"
    assert "export model" not in roles.calls
