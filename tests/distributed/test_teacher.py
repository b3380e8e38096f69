"""The advantages of on-policy distillation, against the same sums of Hugging Face's models."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mindrl.algorithms.estimators import resolve_estimator
from mindrl.batch.experience import Experience, Minibatch
from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Rollouts
from mindrl.batch.sequences import Sequences
from mindrl.config.generate import SamplingConfig
from mindrl.config.run import RunConfig
from mindrl.launch.parts import worker_handle
from mindrl.memory.schedule import Region
from mindrl.observability.metrics import Metrics
from mindrl.observability.timing import StageTimer
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.rewards.scores import Scores
from mindrl.rollout.engine import Sampling
from mindrl.trainer.estimation import Estimation
from mindrl.trainer.minibatches import MinibatchDealer
from mindrl.trainer.reward_manager import Rewarded
from mindrl.trainer.worker_handle import WorkerHandle

pytestmark = pytest.mark.distributed

TEMPERATURE, COEF = 0.7, 0.5
PROMPTS = [Prompt(uid=uid, token_ids=(5 + uid, 6, 7), text="", answer="") for uid in range(4)]
SAMPLING = Sampling(
    section=SamplingConfig(temperature=TEMPERATURE, max_tokens=8),
    stop_token_ids=(1,),
    samples_per_prompt=2,
)
REWARDS = (1.0, 0.0, 0.5, 0.5, 0.0, 2.0, 1.0, 1.0)
WAYS: Mapping[str, Mapping[str, Any]] = {
    "one layout": {"rl_config.adv_estimator": "teacher"},
    "layouts of their own": {
        "rl_config.adv_estimator": "group_mean",
        "rl_config.actor_resource.num_npus": 2,
        "actor_config.backend": "megatron:t2",
        "teacher_config.backend": "archon:d2",
    },
}


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a teacher with other sizes and a vocabulary that is padded further."""
    torch.manual_seed(11)
    sizes = {"hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128}
    ends = {"bos_token_id": None, "eos_token_id": 1, "tie_word_embeddings": False}
    config = Qwen2Config(vocab_size=128, initializer_range=0.1, **sizes, **heads, **ends)
    folder = tmp_path_factory.mktemp("larger")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def logprobs_by_hand(folder: Path, batch: Sequences) -> Tensor:
    """Return the log-prob of each response token at the sampling temperature, 0 elsewhere."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found_BT = torch.zeros(batch.tokens_BT.shape)
    for row, length in enumerate(batch.lengths_B.tolist()):
        tokens_T = batch.tokens_BT[row, :length]
        with torch.no_grad():
            logits_TV = model(tokens_T[None]).logits[0] / TEMPERATURE
        for at in range(1, length):
            if batch.response_mask_BT[row, at]:
                found_BT[row, at] = logits_TV[at - 1].log_softmax(dim=-1)[tokens_T[at]]
    return found_BT


def estimated(config: RunConfig, workers: WorkerHandle) -> tuple[Rollouts, Experience, Metrics]:
    """Sample responses with given rewards, and estimate their advantages."""
    rollouts = workers.generate_sequences(PROMPTS, SAMPLING, step=0)
    scores = Scores(rewards=REWARDS, components={}, ranges={}, failures=())
    estimator = resolve_estimator(config.rl_config.adv_estimator)
    rewarded = Rewarded(responses=[""] * len(REWARDS), scores=scores)
    estimation = Estimation(config, estimator, workers, StageTimer())
    return rollouts, *estimation.of(rollouts, lambda: rewarded)


@pytest.mark.parametrize("way", WAYS)
def test_the_advantage_is_the_teachers_log_prob_minus_the_policys_and_the_teacher_moves(
    way: str,
    larger: Path,
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
) -> None:
    given = {
        "teacher_config.load": str(larger),
        "teacher_config.advantage_coef": COEF,
        "generate_config.sampling_config.temperature": TEMPERATURE,
    }
    config = run_config(random_model(False), given | dict(WAYS[way]))
    plan = unordered_shardings(config).ordered.plan
    group = forked_workers.start(plan)
    workers = worker_handle(group, plan)
    rollouts, experience, metrics = estimated(config, workers)
    group.stop()

    batch, mask_BT = rollouts.sequences(), rollouts.response_mask_BT
    theirs_BT = logprobs_by_hand(larger, batch)
    gap_BT = theirs_BT - logprobs_by_hand(random_model(False), batch)
    expected_BT = COEF * gap_BT
    if way != "one layout":
        # Dr. GRPO's: the two responses to a prompt are consecutive.
        pairs_PS = torch.tensor(REWARDS).view(-1, 2)
        expected_BT += (pairs_PS - pairs_PS.mean(dim=1, keepdim=True)).view(-1, 1) * mask_BT
    # float32 log-probs of networks with random weights, in another order of additions.
    torch.testing.assert_close(experience.advantages_BT, expected_BT, atol=2e-5, rtol=0)
    assert gap_BT[mask_BT].abs().mean() > 0.5
    assert metrics["teacher/kl"] == pytest.approx(-gap_BT[mask_BT].mean().item(), abs=2e-5)
    assert metrics["teacher/logprob"] == pytest.approx(theirs_BT[mask_BT].mean().item(), abs=2e-5)


def test_with_candidates_an_update_learns_the_divergence_of_the_sampled_responses(
    larger: Path,
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
) -> None:
    given = {
        "teacher_config.load": str(larger),
        "teacher_config.candidates": 4,
        "teacher_config.divergence_coef": COEF,
        "rl_config.adv_estimator": "teacher",
        "generate_config.sampling_config.temperature": TEMPERATURE,
    }
    config = run_config(random_model(False), given)
    plan = unordered_shardings(config).ordered.plan
    group = forked_workers.start(plan)
    workers = worker_handle(group, plan)
    rollouts, experience, _ = estimated(config, workers)
    dealer = MinibatchDealer(config.rl_config, seed=1, longest=8)
    (minibatch,) = dealer.cut(experience, [torch.arange(len(REWARDS))], Minibatch)
    metrics = workers.update(minibatch).metrics
    group.stop()

    assert not experience.advantages_BT.any()
    policy, teacher = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (random_model(False), larger)
    )
    loss = torch.zeros(())
    for row, length in enumerate(rollouts.lengths_B.tolist()):
        tokens_1T = rollouts.tokens_BT[row, :length][None]
        ours_TV, theirs_TV = (
            (model(tokens_1T).logits[0, :-1] / TEMPERATURE).log_softmax(dim=-1)
            for model in (policy, teacher)
        )
        theirs_TK, ids_TK = theirs_TV.detach()[:, : ours_TV.size(1)].topk(4)
        ours_TK = ours_TV.gather(1, ids_TK)
        rest_T, their_rest_T = (1 - each.exp().sum(dim=-1) for each in (ours_TK, theirs_TK))
        kl_T = (ours_TK.exp() * (ours_TK - theirs_TK)).sum(dim=-1)
        kl_T = kl_T + rest_T * (rest_T / their_rest_T).log()
        loss = loss + (minibatch.token_weights_BT[row, 1:length] * kl_T).sum()
    (COEF * loss).backward()
    norm = torch.nn.utils.get_total_norm([each.grad for each in policy.parameters()])
    # float32 log-probs of networks with random weights, in another order of additions.
    assert metrics["teacher_divergence"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)


def test_the_memory_of_a_step_with_a_teacher_is_the_planned_one_to_the_byte(
    larger: Path,
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
) -> None:
    given = {"teacher_config.load": str(larger), "rl_config.adv_estimator": "teacher"}
    plan = unordered_shardings(run_config(random_model(False), given)).ordered.plan
    group = forked_workers.start(plan)
    workers = worker_handle(group, plan)
    sequences = workers.generate_sequences(PROMPTS, SAMPLING, step=0).sequences()
    workers.record_memory(is_on=True)
    workers.compute_teacher_log_prob(sequences)
    workers.compute_log_prob(sequences)
    (moments,), planned = workers.flush_moments(), workers.memory_plan()
    group.stop()
    weights = int(planned.regions[Region.TEACHER_WEIGHTS][0])
    # All tensors of the folder in float32; the engine pads each to 64 elements.
    tensors = [each.numel() for each in Qwen2ForCausalLM.from_pretrained(larger).parameters()]
    assert 4 * sum(tensors) <= weights <= 4 * (sum(tensors) + 64 * len(tensors))
    name = Region.TEACHER_WEIGHTS.value
    measured = {each.label: each.region_bytes.get(name, 0) for each in moments}
    assert measured["bring teacher_weights"] == weights
    assert measured["teacher"] == weights
    assert measured["forward"] == 0
