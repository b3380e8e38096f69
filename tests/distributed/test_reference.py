"""The reference: another model in the same processes, which never changes."""

from collections.abc import Callable
from pathlib import Path

import torch
from forked_workers import ForkedWorkers

from mindrl.batch.experience import Minibatch
from mindrl.batch.prompts import Prompt
from mindrl.config.generate import SamplingConfig
from mindrl.config.run import RunConfig
from mindrl.launch.parts import colocated_actor
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.rollout.engine import Sampling

PROMPTS = [Prompt(uid=uid, token_ids=(5 + uid, 6, 7), text="", answer="") for uid in range(4)]
SAMPLING = Sampling(
    section=SamplingConfig(temperature=1.0, max_tokens=8), stop_token_ids=(1,), samples_per_prompt=2
)
TWO_RANKS = {
    "rl_config.actor_resource.num_npus": 2,
    "actor_config.tensor_model_parallel_size": 2,
}


def test_the_reference_is_the_model_of_its_own_path_and_stays_so_while_the_actor_learns(
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
) -> None:
    with_reference = run_config(
        random_model(False),
        TWO_RANKS
        | {
            "rl_config.init_kl_coef": 0.1,
            "rl_config.integrated_mode_config.ref_model_load_path": str(random_model(True)),
        },
    )
    plan = unordered_shardings(with_reference).ordered.plan
    group = forked_workers.start(plan)
    actor = colocated_actor(group, plan)
    rollouts = actor.generate_sequences(PROMPTS, SAMPLING, step=0)
    sequences = rollouts.sequences()
    before = actor.compute_ref_logprobs(sequences).logprobs_BT
    own = actor.compute_logprobs(sequences).logprobs_BT
    mask_BT = rollouts.response_mask_BT
    minibatch = Minibatch(
        tokens_BT=sequences.tokens_BT,
        lengths_B=sequences.lengths_B,
        response_mask_BT=mask_BT,
        old_logprobs_BT=own,
        advantages_BT=torch.ones_like(own) * mask_BT,
        token_weights_BT=mask_BT / mask_BT.sum(),
        ref_logprobs_BT=before,
    )
    metrics = actor.update(minibatch).metrics
    after = actor.compute_ref_logprobs(sequences).logprobs_BT
    moved = actor.compute_logprobs(sequences).logprobs_BT
    group.stop()

    alone = unordered_shardings(run_config(random_model(True), TWO_RANKS)).ordered.plan
    group = forked_workers.start(alone)
    expected = colocated_actor(group, alone).compute_logprobs(sequences).logprobs_BT
    group.stop()

    assert torch.equal(before, expected)
    assert torch.equal(after, before)
    assert (own - before).abs().max() > 0.1
    assert not torch.equal(moved, own)
    assert metrics["kl"] > 0
