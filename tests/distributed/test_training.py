"""The training side against Hugging Face and plain torch, on one rank and on two.

Shapes: B sequences, T positions, V the vocabulary.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from assembly import assembled, assert_moved_alike
from forked_workers import ForkedWorkers
from offload_messages import OffloadFacts
from torch import Tensor
from training_messages import LOSS, OPTIMIZER, Case, Course, Updated
from transformers import Qwen2Config, Qwen2ForCausalLM

from mindrl.algorithms.losses import LossInputs
from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Minibatch
from mindrl.batch.sequences import Logprobs, Sequences
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

MakeModel = Callable[[bool], Path]
LENGTHS = (5, 17, 9, 12)


@pytest.fixture(scope="session")
def odd_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 97 tokens: two ranks hold 49 each, one of them is padding."""
    torch.manual_seed(8)
    config = Qwen2Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=0.15,
    )
    folder = tmp_path_factory.mktemp("odd")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def sequences(vocabulary: int = 96) -> Sequences:
    """Make four sequences of which all but the first three tokens are the response."""
    generator = torch.Generator().manual_seed(1)
    B, T = len(LENGTHS), max(LENGTHS)
    lengths_B = torch.tensor(LENGTHS)
    inside_BT = torch.arange(T) < lengths_B[:, None]
    tokens_BT = torch.randint(0, vocabulary, (B, T), generator=generator) * inside_BT
    # The last token of the vocabulary, which lies next to the padding.
    tokens_BT[1, 5] = vocabulary - 1
    return Sequences(
        tokens_BT=tokens_BT,
        lengths_B=lengths_B,
        response_mask_BT=inside_BT & (torch.arange(T) >= 3),
    )


def hugging_face(folder: Path) -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)


def plain_scores(
    model: Qwen2ForCausalLM, batch: Sequences, temperature: float
) -> tuple[Tensor, Tensor]:
    """Score with log_softmax over all logits; padding lies behind and is never looked at."""
    logits_BTV = model(batch.tokens_BT).logits / temperature
    all_BTV = torch.log_softmax(logits_BTV, dim=-1)
    entropy_BT = -(all_BTV.exp() * all_BTV).sum(-1)
    chosen_BT = all_BTV[:, :-1].gather(2, batch.tokens_BT[:, 1:, None])[..., 0]
    mask_BT = batch.response_mask_BT[:, 1:]
    pad = torch.nn.functional.pad
    return pad(chosen_BT * mask_BT, (1, 0)), pad(entropy_BT[:, :-1] * mask_BT, (1, 0))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_megatron_and_hugging_face_logits_agree_to_1e_4(
    tied: bool, forked_workers: ForkedWorkers, random_model: MakeModel
) -> None:
    folder, batch = random_model(tied), sequences()
    ((found_BTV,),) = forked_workers.run("training_probe:logits", [Case(folder=str(folder))], batch)
    with torch.no_grad():
        expected_BTV = hugging_face(folder)(batch.tokens_BT).logits
    # The last token of a row predicts nothing.
    inside_BT = torch.arange(max(LENGTHS)) < batch.lengths_B[:, None] - 1
    # Logits of size 10 in float32, two layers.
    torch.testing.assert_close(found_BTV[inside_BT], expected_BTV[inside_BT], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("ranks", "sequence_parallel"),
    [(1, False), (2, False), (2, True)],
    ids=["1-rank", "2-ranks", "2-ranks-sequence-parallel"],
)
def test_log_probs_at_temperature_0_7_are_those_of_a_plain_computation(
    ranks: int, sequence_parallel: bool, forked_workers: ForkedWorkers, odd_model: Path
) -> None:
    batch = sequences(vocabulary=97)
    case = Case(
        folder=str(odd_model),
        layout=TrainLayout(tp=ranks),
        sequence_parallel=sequence_parallel,
        temperature=0.7,
    )
    replies: list[list[Logprobs]] = forked_workers.run(
        "training_probe:scores", case, batch, [1, 3, 4], ranks=ranks
    )
    with torch.no_grad():
        logprobs_BT, _ = plain_scores(hugging_face(odd_model), batch, 0.7)
    assert len(replies) == ranks
    for reply in replies:
        # Three micro-batch sizes, and two passes of a copy whose weights had been on the host.
        assert len(reply) == 5
        for scored in reply:
            torch.testing.assert_close(scored.logprobs_BT, logprobs_BT, atol=2e-5, rtol=0)
            assert not scored.logprobs_BT[~batch.response_mask_BT].any()


def minibatches(model: Qwen2ForCausalLM) -> list[Minibatch]:
    """Make two updates on the same sequences, a step away from the policy that wrote them."""
    batch = sequences()
    with torch.no_grad():
        logprobs_BT, _ = plain_scores(model, batch, 1.0)
    generator = torch.Generator().manual_seed(2)
    noise_BT = 0.3 * torch.randn(logprobs_BT.shape, generator=generator)
    advantages_B = torch.tensor([1.5, -0.5, 0.25, -1.0])
    made = Minibatch(
        tokens_BT=batch.tokens_BT,
        lengths_B=batch.lengths_B,
        response_mask_BT=batch.response_mask_BT,
        old_logprobs_BT=(logprobs_BT + noise_BT) * batch.response_mask_BT,
        advantages_BT=advantages_B[:, None] * batch.response_mask_BT,
        token_weights_BT=token_mean_weights(batch.response_mask_BT),
        ref_logprobs_BT=(logprobs_BT - noise_BT) * batch.response_mask_BT,
    )
    return [made, made]


def plain_updates(
    model: Qwen2ForCausalLM, batches: list[Minibatch]
) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """Do the same with Hugging Face's model and torch's AdamW."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    vectors = [weight for weight in model.parameters() if weight.dim() == 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices},
        {"params": vectors, "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(
        groups,
        lr=OPTIMIZER["lr"],
        betas=(OPTIMIZER["adam_beta1"], OPTIMIZER["adam_beta2"]),
        eps=OPTIMIZER["adam_eps"],
        weight_decay=OPTIMIZER["weight_decay"],
    )
    metrics = []
    for batch in batches:
        scores = plain_scores(model, batch, 1.0)
        terms = LOSS(LossInputs.of(scores, batch, torch.ones_like(batch.advantages_BT)))
        adam.zero_grad()
        torch.autograd.backward(terms.loss)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER["clip_grad"])
        adam.step()
        found = {name: value.item() for name, value in terms.metrics.items()}
        metrics.append(found | {"grad_norm": norm.item(), "lr": OPTIMIZER["lr"], "skipped": 0.0})
    return metrics, {name: tensor.detach() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("tied", "ranks", "sequence_parallel", "micro_batch_size"),
    [(True, 1, False, 4), (True, 2, True, 2), (False, 1, False, 3), (False, 2, True, 1)],
    ids=["tied", "tied-2-ranks-sequence-parallel", "untied", "untied-2-ranks-sequence-parallel"],
)
def test_two_updates_move_every_weight_as_plain_torch_does(
    tied: bool,
    ranks: int,
    sequence_parallel: bool,
    micro_batch_size: int,
    forked_workers: ForkedWorkers,
    random_model: MakeModel,
) -> None:
    model = hugging_face(random_model(tied))
    before = copy.deepcopy(model.state_dict())
    batches = minibatches(model)
    folder, layout = str(random_model(tied)), TrainLayout(tp=ranks)
    case = Case(folder=folder, layout=layout, sequence_parallel=sequence_parallel)
    course = Course(
        minibatches=batches,
        loss=LOSS,
        optimizer=OPTIMIZER,
        micro_batching=MicroBatching(sequences=micro_batch_size),
    )
    replies: list[list[Updated]] = forked_workers.run(
        "training_probe:updates", [case], course, ranks=ranks
    )
    metrics, weights = plain_updates(model, batches)
    for (found,) in replies:
        for ours, theirs in zip(found.metrics, metrics, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    together = assembled(folder, layout, [found.weights for (found,) in replies])
    assert_moved_alike(together, weights, before, least=1e-5)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "whole"])
def test_leaving_the_device_between_updates_changes_no_bit_and_leaves_nothing_behind(
    sharded: bool, bf16: bool, forked_workers: ForkedWorkers, random_model: MakeModel
) -> None:
    folder = random_model(True)
    course = Course(
        minibatches=minibatches(hugging_face(folder)),
        loss=LOSS,
        optimizer=OPTIMIZER | {"use_distributed_optimizer": sharded},
        micro_batching=MicroBatching(sequences=4),
    )
    cases = [Case(folder=str(folder), bf16=bf16)]
    ((stayed,),) = forked_workers.run("training_probe:updates", cases, course)
    ((swapped,),) = forked_workers.run("training_probe:updates", cases, replace(course, swap=True))
    assert swapped.metrics == stayed.metrics
    assert swapped.device_bytes == [0, 0]
    for name, tensor in stayed.weights.items():
        assert tensor.dtype == (torch.bfloat16 if bf16 else torch.float32)
        assert torch.equal(swapped.weights[name], tensor), name


def test_an_offloaded_storage_keeps_its_views_and_comes_back_as_it_was(
    forked_workers: ForkedWorkers,
) -> None:
    (facts,) = forked_workers.run("offload_probe:offload_facts")
    # Six floats seen through three tensors, and three floats: 24 + 12 bytes, two places of 512.
    assert facts == OffloadFacts(
        out_bytes=36,
        bytes_while_out=0,
        in_bytes=36,
        kept=[[0, 1, 12, 13, 14, 15], [0, 1], [12, 13, 14, 15], [7, 7, 7]],
        share_storage=True,
        changed_out_bytes=36,
        clean_out_bytes=0,
        after_clean=[0, 1, 12, 13, 14, 15],
        host_copy=[12, 13, 14, 15],
        dropped_bytes=0,
        # A third place, which nobody had planned.
        arena_bytes=1536,
        beyond_bytes=512,
    )
