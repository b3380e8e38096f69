"""Roles of a trainer that answer from memory and record each call.

What a step computes is proved with real models in tests/distributed and tests/e2e.
"""

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import count, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from mindrl.batch.experience import CriticMinibatch, Minibatch, PolicyUpdate
from mindrl.batch.likely_tokens import LikelyTokens
from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.batch.sequences import Logprobs, Sequences, SequenceScores, Values
from mindrl.checkpoint.commits import SavedFiles, write_synced
from mindrl.config.generate import GenerateConfig, SamplingConfig
from mindrl.config.layout_keys import Role
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.rl import RLConfig
from mindrl.config.role import ActorConfig, CriticConfig
from mindrl.config.run import RunConfig
from mindrl.data.prompts import PromptSet
from mindrl.data.run_data import RunData
from mindrl.errors import StopRequestedError
from mindrl.layouts.layout import TrainLayout
from mindrl.observability.console import StepConsole
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.observability.trackers import JsonlTracker
from mindrl.rewards.functions import ScoreRange
from mindrl.rewards.scores import Scores
from mindrl.rollout.engine import Sampling
from mindrl.trainer.engine_rounds import Completed
from mindrl.trainer.reward_manager import RewardSources
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary
from mindrl.trainer.worker_handle import Watched

PROMPTS = tuple(
    Prompt(uid=uid, token_ids=(uid + 1, 9), text=f"prompt {uid}", answer=f"answer {uid}")
    for uid in range(4)
)
SAMPLING = Sampling(
    section=SamplingConfig(temperature=1.0, max_tokens=2), stop_token_ids=(1,), samples_per_prompt=2
)
ROLLOUT_LOGPROB = -1.0


class MemoryRoles:
    """All roles in one, with one list of calls."""

    layouts: Mapping[str, Any] = MappingProxyType({"actor": TrainLayout(tp=1, dp=1)})
    loss = "policy_loss"
    """Name of the loss in the metrics of an update of the actor."""

    def __init__(
        self, *, gap: float = 0.0, grad_norm: Callable[[int], float] = lambda _: 0.5
    ) -> None:
        self.calls: list[str] = []
        self.engines = self
        self.published: list[int] = []
        self.records: list[dict[str, object]] = []
        self.asked: list[tuple[list[int], Sampling, int]] = []
        self.minibatches: list[Minibatch] = []
        self.saves: list[Path] = []
        self.critic_minibatches: list[CriticMinibatch] = []
        self.gap = gap
        self.keeps_logprobs = False
        """Old log-probs of updates that return them."""
        self.worst: Mapping[str, Mapping[str, float]] = {}
        """State of the reward functions."""
        self.grad_norm = grad_norm
        """Gradient norm of the update with this number, from 1."""

    def publish(self, version: int) -> tuple[int, ...]:
        """Store the version for the next generation."""
        self.published.append(version)
        return ()

    def generate_sequences(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        step: int,
        answered: Sequence[Prompt] = (),
        watched: Watched | None = None,
    ) -> Rollouts:
        """Answer with two tokens, the second of which counts the samples."""
        del answered
        self.calls.append("generate")
        self.asked.append(([prompt.uid for prompt in prompts], sampling, step))
        group = [index for index in range(len(prompts)) for _ in range(sampling.samples_per_prompt)]
        responses = Responses.of(
            token_ids=[(20, 30 + row % sampling.samples_per_prompt) for row in range(len(group))],
            logprobs=[(ROLLOUT_LOGPROB, ROLLOUT_LOGPROB)] * len(group),
            finished=[True] * len(group),
        )
        if watched is not None:
            for row, drawn in enumerate(responses.each()):
                watched.on_completed({row: Completed(*drawn, finished=True)})
        return Rollouts.from_responses([prompt.token_ids for prompt in prompts], responses, group)

    def take_routes(self) -> list[object]:
        """Return nothing: its engines are where it trains."""
        return []

    def compute_log_prob(self, sequences: Sequences) -> Logprobs:
        self.calls.append("log-probs")
        return self._scored(sequences, ROLLOUT_LOGPROB - self.gap)

    def compute_ref_log_prob(self, sequences: Sequences) -> Logprobs:
        self.calls.append("reference log-probs")
        return self._scored(sequences, -3.0)

    def compute_teacher_log_prob(self, sequences: Sequences) -> Logprobs:
        """Agree with the policy, and find two tokens at each position, if the run asks for any."""
        self.calls.append("teacher log-probs")
        found, counts_B = (
            self._scored(sequences, ROLLOUT_LOGPROB),
            sequences.response_mask_BT.sum(1),
        )
        ids_KR = torch.arange(2)[:, None].repeat(1, int(counts_B.sum()))
        logprobs_KR = torch.full(ids_KR.shape, ROLLOUT_LOGPROB)
        likely = LikelyTokens(ids_KR=ids_KR, logprobs_KR=logprobs_KR, counts_B=counts_B)
        return replace(found, likely=likely)

    def update(self, minibatch: Minibatch) -> PolicyUpdate:
        """Return the log-probs of a forward pass, for updates that compute them."""
        self.calls.append("update")
        self.minibatches.append(minibatch)
        metrics, logprobs_BT = self._updated(self.loss, len(self.minibatches)), None
        if self.keeps_logprobs:
            logprobs_BT = self._scored(minibatch, ROLLOUT_LOGPROB - self.gap).logprobs_BT
        return PolicyUpdate(metrics=metrics, logprobs_BT=logprobs_BT)

    def compute_values(self, sequences: Sequences) -> Values:
        """Expect a quarter of a reward at each response token."""
        self.calls.append("values")
        return Values(values_BT=sequences.response_mask_BT * torch.tensor(0.25))

    def update_critic(self, minibatch: CriticMinibatch) -> dict[str, float]:
        self.calls.append("critic update")
        self.critic_minibatches.append(minibatch)
        return self._updated("value_loss", len(self.critic_minibatches))

    def compute_rewards(self, sequences: Sequences) -> SequenceScores:
        """Score a sequence by its last token."""
        self.calls.append("reward model")
        last_B = sequences.tokens_BT.gather(1, sequences.lengths_B[:, None] - 1)[:, 0]
        return SequenceScores(rewards_B=last_B.float())

    def export(self, role: Role, folder: Path, record: Mapping[str, object]) -> None:
        self.calls.append(f"export {folder.name}")
        if role == "actor":
            self.records.append(dict(record))
        assert record == self.records[-1]

    def keep_export(self, role: Role, folder: Path, kept: Path) -> None:
        self.calls.append(f"keep {folder.name} of {role} as {kept.name}")

    def save_bytes(self) -> int:
        return len(b"weights")

    def begin_save(self, folder: Path) -> None:
        self.saves.append(folder)

    def finish_save(self) -> list[SavedFiles]:
        """Write one file, which names the step."""
        written = write_synced(self.saves[-1] / "actor-00000.safetensors", [b"weights"])
        return [SavedFiles(files=(written,), updates={"actor": 7}, seconds=0.5, waited_seconds=0.1)]

    def flush_metrics(self) -> dict[str, float]:
        self.calls.append("flush")
        return {"bytes/reshard_sent": 7.0}

    def record_memory(self, is_on: bool) -> None:
        self.records_memory = is_on

    def flush_moments(self) -> list[list[MeasuredSnapshot]]:
        assert self.records_memory, "no memory was recorded"
        return [[MeasuredSnapshot(label="train", phase="train", region_bytes={"actor_weights": 5})]]

    def abort(self) -> None:
        self.calls.append("abort")

    def state(self) -> Mapping[str, Mapping[str, float]]:
        return self.worst

    def load_state(self, state: Mapping[str, Mapping[str, float]]) -> None:
        self.worst = state

    def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
        """Return reward 1 if the second token is 31, else 0."""
        assert len(answers) == len(responses)
        self.calls.append("score")
        right = tuple(float(response.endswith("31")) for response in responses)
        ranges = {"exact": ScoreRange(0.0, 1.0)}
        components = {"exact": right}
        return Scores(rewards=right, components=components, ranges=ranges, failures=())

    def score_parts(
        self,
        lengths: Sequence[int],
        responses: Sequence[str],
        answers: Sequence[str],
        *more: object,
    ) -> list[Scores]:
        """Score batches of these lengths, each by itself."""
        left, given = iter(responses), iter(answers)
        parts = [([*islice(left, length)], [*islice(given, length)]) for length in lengths]
        return [self.score(*part, *more) for part in parts]

    def _updated(self, loss: str, updates: int) -> dict[str, float]:
        """Report a skipped update if its gradient is not finite."""
        skipped = float(not math.isfinite(self.grad_norm(updates)))
        return {loss: float(updates), "grad_norm": self.grad_norm(updates), "skipped": skipped}

    @staticmethod
    def _scored(sequences: Sequences, logprob: float) -> Logprobs:
        logprobs_BT = sequences.response_mask_BT * torch.tensor(logprob)
        return Logprobs(logprobs_BT=logprobs_BT)


def decode(token_ids: list[int]) -> str:
    return " ".join(map(str, token_ids))


def config(**changes: Any) -> RunConfig:
    """Return the configuration of one step of two prompts, each an update, with changes by key."""
    training = {
        "train_iters": 1,
        "global_batch_size": 2,
        "seq_length": 8,
        "data_path": "none",
        "seed": 1,
    }
    rl = {
        "n_samples_per_prompt": SAMPLING.samples_per_prompt,
        "mini_batch_size": 1,
        "verifier_function": ("exact",),
        "verifier_weight": (1.0,),
        "log_samples": 3,
        "memory_timeline_steps": 0,
    }
    for key, value in changes.items():
        of_training = key in {field.name for field in fields(MegatronTrainingConfig)}
        (training if of_training else rl)[key] = value
    critic = CriticConfig(load="none") if rl.get("adv_estimator") == "gae" else None
    return RunConfig(
        critic_config=critic,
        megatron_training=MegatronTrainingConfig(**training),
        actor_config=ActorConfig(load="none", save="none"),
        rl_config=RLConfig(**rl),
        generate_config=GenerateConfig(sampling_config=SAMPLING.section),
    )


class MemoryTokenizer:
    """Decodes token ids as numbers."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens, "people read the words alone"
        return decode(token_ids)


def data(test: Sequence[Prompt] = (), train: Sequence[Prompt] = PROMPTS) -> RunData:
    def prompts_of(prompts: Sequence[Prompt]) -> PromptSet:
        return PromptSet(path="none", prompts=tuple(prompts), dropped=0)

    return RunData(
        tokenizer=MemoryTokenizer(),
        stop_token_ids=SAMPLING.stop_token_ids,
        train=prompts_of(train),
        test=prompts_of(test) if test else None,
    )


def rewards(roles: MemoryRoles, *, model_weight: float | None = None) -> RewardSources:
    """Score by rules, and by the model if it has a weight."""
    return RewardSources(
        scorer=roles,
        reward_model=None if model_weight is None else roles,
        reward_model_weight=model_weight or 0.0,
    )


def run_log(root: Path, steps: int, *more: Role) -> RunLog:
    """Record a run that exports its actor, and more roles to folders of their names."""
    folder = RunFolder(root=root)
    return RunLog(
        folder,
        RunSummary(exports={"actor": root / "model"} | {role: root / role for role in more}),
        StepConsole(steps, io.StringIO()),
        [JsonlTracker(folder.metrics)],
    )


def asked_at(moment: int) -> Callable[[], None]:
    """Request a stop at one of the checks of a run, counted from 0."""
    looks = count()

    def check_interrupt() -> None:
        if next(looks) == moment:
            raise StopRequestedError("stopped by SIGINT")

    return check_interrupt


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
