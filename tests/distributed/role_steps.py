"""Steps of all roles of a run in the order of PPO's, with advantages that need no rewards."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.batch.experience import CriticMinibatch, Minibatch
from mindrl.batch.prompts import Prompt
from mindrl.batch.sequences import Sequences
from mindrl.config.generate import SamplingConfig
from mindrl.config.run import RunConfig
from mindrl.rollout.engine import Sampling
from mindrl.trainer.worker_handle import WorkerHandle

PROMPTS = [
    Prompt(uid=uid, token_ids=tuple(range(5 + uid, 12 + 2 * uid)), text="", answer="")
    for uid in range(4)
]
MAX_TOKENS = 6
GREEDY = Sampling(
    section=SamplingConfig(max_tokens=MAX_TOKENS), stop_token_ids=(1,), is_greedy=True
)
SAMPLING = Sampling(
    section=SamplingConfig(temperature=1.0, max_tokens=MAX_TOKENS),
    stop_token_ids=(1,),
    samples_per_prompt=2,
)


@dataclass
class StepTrace:
    """What the roles said in a step, and what the updates did; None of a role that is not there."""

    sequences: Sequences
    rewards_B: Tensor | None = None
    values_BT: Tensor | None = None
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of each update, by the role."""


def take_step(
    actor: WorkerHandle, config: RunConfig, step: int, sampling: Sampling = SAMPLING
) -> StepTrace:
    """Roll out, ask every role that is there, and update those that learn."""
    rollouts = actor.generate_sequences(PROMPTS, sampling, step=step)
    sequences, mask_BT = rollouts.sequences(), rollouts.response_mask_BT
    trace = StepTrace(sequences)
    if "reward" in config.roles:
        trace.rewards_B = actor.compute_rewards(sequences).rewards_B
    ref_logprobs_BT = None
    if "ref" in config.roles:
        ref_logprobs_BT = actor.compute_ref_log_prob(sequences).logprobs_BT
    old_logprobs_BT = actor.compute_log_prob(sequences).logprobs_BT
    wanted_B = (rollouts.tokens_BT % 3 == 0).float().mean(1)
    common: dict[str, Any] = {
        "tokens_BT": sequences.tokens_BT,
        "lengths_B": sequences.lengths_B,
        "response_mask_BT": mask_BT,
        "token_weights_BT": token_mean_weights(mask_BT),
    }
    if "critic" in config.roles:
        trace.values_BT = actor.compute_values(sequences).values_BT
        critic_minibatch = CriticMinibatch(
            **common,
            old_values_BT=trace.values_BT,
            returns_BT=wanted_B[:, None] * mask_BT,
        )
        trace.metrics["critic"] = actor.update_critic(critic_minibatch)
    minibatch = Minibatch(
        **common,
        old_logprobs_BT=old_logprobs_BT,
        advantages_BT=(wanted_B - wanted_B.mean())[:, None] * mask_BT * 10,
        ref_logprobs_BT=ref_logprobs_BT,
        rollout_logprobs_BT=rollouts.rollout_logprobs_BT,
    )
    trace.metrics["actor"] = actor.update(minibatch).metrics
    return trace
