"""The reference: another model in the same processes, which never changes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from torch import Tensor

from mindrl.batch.experience import Minibatch
from mindrl.batch.prompts import Prompt
from mindrl.batch.sequences import Sequences
from mindrl.checkpoint.commits import Commits
from mindrl.config.generate import SamplingConfig
from mindrl.config.run import RunConfig
from mindrl.launch.parts import worker_handle
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


def pushed_up(sequences: Sequences, own_BT: Tensor, ref_BT: Tensor) -> Minibatch:
    """Return a minibatch that makes all responses more likely."""
    mask_BT = sequences.response_mask_BT
    return Minibatch(
        tokens_BT=sequences.tokens_BT,
        lengths_B=sequences.lengths_B,
        response_mask_BT=mask_BT,
        old_logprobs_BT=own_BT,
        advantages_BT=torch.ones_like(own_BT) * mask_BT,
        token_weights_BT=mask_BT / mask_BT.sum(),
        ref_logprobs_BT=ref_BT,
    )


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
    actor = worker_handle(group, plan)
    sequences = actor.generate_sequences(PROMPTS, SAMPLING, step=0).sequences()
    before = actor.compute_ref_log_prob(sequences).logprobs_BT
    own = actor.compute_log_prob(sequences).logprobs_BT
    metrics = actor.update(pushed_up(sequences, own, before)).metrics
    after = actor.compute_ref_log_prob(sequences).logprobs_BT
    moved = actor.compute_log_prob(sequences).logprobs_BT
    group.stop()

    alone = unordered_shardings(run_config(random_model(True), TWO_RANKS)).ordered.plan
    group = forked_workers.start(alone)
    expected = worker_handle(group, alone).compute_log_prob(sequences).logprobs_BT
    group.stop()

    assert torch.equal(before, expected)
    assert torch.equal(after, before)
    assert (own - before).abs().max() > 0.1
    assert not torch.equal(moved, own)
    assert metrics["kl"] > 0


@pytest.mark.parametrize("stays", [False, True])
def test_the_reference_takes_over_the_actors_weights_and_a_checkpoint_has_them(
    stays: bool,
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    resets = {"rl_config.init_kl_coef": 0.1, "rl_config.ref_update_interval": 1}
    # Weights in bfloat16: a checkpoint holds them in float32, and gives them back to the bit.
    resets |= {"megatron_training.bf16": True, "actor_config.lr": 1e-2}
    resets |= {"ref_config.offload_param": not stays}
    resets |= {"generate_config.offload_train_param": not stays}
    config = run_config(random_model(False), TWO_RANKS | resets)
    plan = unordered_shardings(config).ordered.plan
    group = forked_workers.start(plan)
    actor, commits = worker_handle(group, plan), Commits(tmp_path)

    def asked() -> tuple[Tensor, Tensor]:
        """Return the log-probs of the reference, and of the actor."""
        found = actor.compute_ref_log_prob(sequences), actor.compute_log_prob(sequences)
        return found[0].logprobs_BT, found[1].logprobs_BT

    sequences = actor.generate_sequences(PROMPTS, SAMPLING, step=0).sequences()
    initial, own = asked()
    assert torch.equal(initial, own)
    actor.update(pushed_up(sequences, own, initial))
    actor.reset_reference()
    reference, once_moved = asked()
    actor.update(pushed_up(sequences, once_moved, reference))
    kept, twice_moved = asked()
    assert torch.equal(reference, once_moved)
    assert torch.equal(kept, once_moved)
    assert not torch.equal(once_moved, initial)
    assert not torch.equal(twice_moved, once_moved)

    actor.begin_save(commits.begin(1))
    actor.generate_sequences(PROMPTS, SAMPLING, step=1)
    saved = actor.finish_save()
    found = commits.commit(1, [file for rank in saved for file in rank.files], {})
    assert saved[0].updates == {"actor": 2, "ref": 0}
    assert [path.name[:9] for path in found.paths("ref-")] == ["ref-00000", "ref-00001"]
    actor.reset_reference()
    assert torch.equal(asked()[0], twice_moved)
    actor.restore(found.folder, saved[0].updates)
    again, back = asked()
    group.stop()
    assert torch.equal(again, once_moved)
    assert torch.equal(back, twice_moved)
