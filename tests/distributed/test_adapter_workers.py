"""Whole workers whose actor learns through adapters: rollout, reference, memory, exports.

Shapes: B sequences, T positions, V the vocabulary.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but
from role_steps import PROMPTS, SAMPLING
from test_layouts import assert_one_run, train_for_three_steps
from transformers import AutoModelForCausalLM

from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.batch.experience import Minibatch
from mindrl.config.run import RunConfig
from mindrl.launch.parts import worker_handle
from mindrl.memory.plan import MemoryPlan
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.preflight.memory_plan import memory_plan
from mindrl.preflight.run_shardings import unordered_shardings

pytestmark = pytest.mark.distributed

MakeConfig = Callable[..., RunConfig]
ADAPTERS: dict[str, Any] = {
    "actor_config.lora.r": 4,
    "actor_config.lora.alpha": 8.0,
    "actor_config.lr": 1e-2,
}
TWO: dict[str, Any] = {"rl_config.actor_resource.num_npus": 2}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "TP2 to DP2": (
        "qwen3",
        {
            "actor_config.tensor_model_parallel_size": 2,
            "megatron_training.sequence_parallel": True,
        },
    ),
    "PP2 to TP2": (
        "qwen3",
        {
            "actor_config.pipeline_model_parallel_size": 2,
            "generate_config.infer_tensor_parallel_size": 2,
        },
    ),
    "EP2 to TP2": (
        "qwen3_moe",
        {
            "actor_config.expert_model_parallel_size": 2,
            "generate_config.infer_tensor_parallel_size": 2,
        },
    ),
    "archon DP2 to TP2": (
        "qwen3",
        {"actor_config.backend": "archon:d2", "generate_config.infer_tensor_parallel_size": 2},
    ),
    "archon TP2 to DP2": ("qwen3", {"actor_config.backend": "archon:t2"}),
    "fsdp DP2 to DP2": ("qwen3", {"actor_config.backend": "fsdp:d2"}),
}


@pytest.mark.parametrize("way", at_night_but(("EP2 to TP2",), WAYS))
def test_two_workers_with_adapters_equal_one(
    way: str,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
    run_config: MakeConfig,
) -> None:
    family, layout = WAYS[way]
    folder, checked = random_model_of(family), {"generate_config.verify_weights": "always"}
    alone = train_for_three_steps(forked_workers, run_config(folder, ADAPTERS))
    config = run_config(folder, ADAPTERS | TWO | checked | layout)
    two = train_for_three_steps(forked_workers, config)
    assert_one_run(two, alone)
    # What the engine computes with is what the trainer does; logits of size 10 in float32.
    assert max(*alone.gaps, *two.gaps) < 5e-6
    assert len(set(alone.losses)) == len(alone.losses), "nothing was learned"


@pytest.mark.parametrize(
    "way",
    at_night_but(("fsdp DP2 to DP2",), ("TP2 to DP2", "archon TP2 to DP2", "fsdp DP2 to DP2")),
)
def test_the_reference_is_the_base_in_the_memory_that_was_planned(
    way: str,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
    run_config: MakeConfig,
    tmp_path: Path,
) -> None:
    folder = random_model_of("qwen3")
    config = run_config(folder, ADAPTERS | TWO | WAYS[way][1] | {"rl_config.init_kl_coef": 0.1})
    assert config.roles == ("actor",)
    shardings = unordered_shardings(config).ordered
    group = forked_workers.start(shardings.plan)
    actor = worker_handle(group, shardings.plan)
    first, read = actor.generate_sequences(PROMPTS, SAMPLING, step=0), []
    for step in range(3):
        if step == 2:
            actor.record_memory(is_on=True)
        if step:
            actor.generate_sequences(PROMPTS, SAMPLING, step=step)
        # Of the first step's sequences, whatever is drawn later.
        both = [
            ask(first.sequences()).logprobs_BT
            for ask in (actor.compute_ref_log_prob, actor.compute_log_prob)
        ]
        read.append(both)
        mask_BT = first.response_mask_BT
        wanted_B = (first.tokens_BT % 3 == 0).float().mean(1)
        actor.update(
            Minibatch(
                tokens_BT=first.tokens_BT,
                lengths_B=first.sequences().lengths_B,
                response_mask_BT=mask_BT,
                token_weights_BT=token_mean_weights(mask_BT),
                old_logprobs_BT=both[1],
                advantages_BT=(wanted_B - wanted_B.mean())[:, None] * mask_BT * 10,
                ref_logprobs_BT=both[0],
                rollout_logprobs_BT=None,
            )
        )
    moments, plan = actor.flush_moments(), actor.memory_plan()
    copied = [each["bytes/to_host_actor_weights"] for each in group.call_all("flush_metrics")]
    actor.export("actor", tmp_path / "model", {})
    group.stop()

    # At first B is zero; then the actor goes away from a reference that stays, to the bit.
    assert torch.equal(*read[0])
    assert all(torch.equal(ref_BT, read[0][0]) for ref_BT, _ in read)
    assert not torch.allclose(read[2][1], read[0][0], atol=1e-2)
    predicted = memory_plan(shardings, None)
    # Two updates have a rollout behind them, and the weights that stay are on the host already.
    parts = [each.held_bytes() for each in shardings.adapters or () if each is not None]
    assert copied == [2 * sum(each) for each in zip(*parts, strict=True)]
    check_moments(moments, predicted)
    assert plan.regions.keys() == predicted.regions.keys()
    check_export(folder, tmp_path / "model")


def check_moments(moments: list[list[MeasuredSnapshot]], predicted: MemoryPlan) -> None:
    """Compare what lay on each device, moment by moment, with what was planned."""
    for rank, (found, planned) in enumerate(
        zip(moments, map(predicted.of_rank, range(2)), strict=True)
    ):
        assert [each.label for each in found] == [each.label for each in planned], rank
        for each, other in zip(found, planned, strict=True):
            regions = dict(other.region_bytes)
            if each.label in ("bring rollout_weights", "reshard"):
                # On a host the engine's weights take memory only as they are filled, and weights
                # that stay leave one by one meanwhile.
                assert each.region_bytes["rollout_weights"] <= regions["rollout_weights"]
                regions["rollout_weights"] = each.region_bytes["rollout_weights"]
            # Its size is not asked for here.
            regions["kv_cache"] = each.region_bytes.get("kv_cache", 0)
            assert {"kv_cache": 0, **each.region_bytes} == regions, each.label


def check_export(base: Path, exported: Path) -> None:
    """Compare the merged model with PEFT's on the base."""
    tokens_BT = torch.arange(24).reshape(2, 12)
    merged = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        without_BTV = plain(tokens_BT).logits
        adapted = peft.PeftModel.from_pretrained(plain, exported / "adapter")
        theirs_BTV, ours_BTV = adapted(tokens_BT).logits, merged(tokens_BT).logits
    # Logits of size 10 in float32, four layers.
    torch.testing.assert_close(ours_BTV, theirs_BTV, atol=1e-4, rtol=0)
    assert (ours_BTV - without_BTV).abs().max() > 0.1
