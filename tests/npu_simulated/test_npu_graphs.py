"""Graphs of the real vllm-ascend on simulated NPUs, with weights that change in place.

What is captured is run again by the addresses that it had (cann/graphs.cpp). An engine of one model
gets the weights of another between its answers; a stale weight would show in them.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_messages import EngineCase, GraphLife
from simulated import SimulatedNpus
from test_npu_engine import MIB, PAGE, PROMPTS, folder_of, is_right, likeliest, needs_mindspeed
from transformers import AutoModelForCausalLM

from mindrl.batch.rollouts import Responses

pytestmark = pytest.mark.npu_simulated

__all__ = ["folder_of"]
SIZES = 4
"""1, 2, 4 and 8 sequences, with `max_num_seqs` of 8."""
STEPS = 11
"""Decode steps of 12 tokens."""


def with_other_weights(folder: Path, target: Path) -> Path:
    """Copy a folder, with the numbers of each tensor in another order."""
    torch.manual_seed(8)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for tensor in model.state_dict().values():
        tensor.copy_(tensor.flatten()[torch.randperm(tensor.numel())].view_as(tensor))
    model.save_pretrained(target)
    shutil.copy(folder / "config.json", target)
    return target


def answers_of(folder: Path) -> list[int]:
    """Return what Hugging Face says."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return [token for prompt in PROMPTS for token in likeliest(model, prompt)]


def largest_gap(said: Responses, folder: Path) -> float:
    """Return how far the log-prob of a sampled token is from Hugging Face's, in nats."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    lengths, found = said.lengths_B.tolist(), 0.0
    sampled = zip(said.token_ids_N.split(lengths), said.logprobs_N.split(lengths), strict=True)
    for prompt, (ids_T, logprobs_T) in zip(PROMPTS, sampled, strict=True):
        with torch.no_grad():
            logits_TV = model(torch.tensor([[*prompt, *ids_T.tolist()]])).logits[0]
        expected_TV = logits_TV[len(prompt) - 1 : -1].log_softmax(-1)
        expected_T = expected_TV.gather(1, ids_T.long()[:, None])[:, 0]
        found = max(found, (expected_T - logprobs_T).abs().max().item())
    return found


def test_a_replay_reads_what_lies_there_and_nothing_that_lies_elsewhere(
    simulated_npus: SimulatedNpus,
) -> None:
    (found,) = simulated_npus.run("plain_graph_probe:replayed")
    once, twice, elsewhere = found
    assert once == [1.0, 1.0, 1.0, 1.0]
    assert twice == [2.0, 2.0, 3.0, 3.0]
    assert elsewhere == [2.0, 2.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("family", "tp", "whole_experts"),
    [
        ("qwen3", 1, False),
        pytest.param("qwen3", 2, False, marks=pytest.mark.nightly),
        pytest.param("qwen3_moe", 2, True, marks=pytest.mark.nightly),
    ],
)
def test_an_engine_with_graphs_answers_with_each_new_set_of_weights(
    family: str,
    tp: int,
    whole_experts: bool,
    folder_of: Callable[[str], Path],
    tmp_path: Path,
    npu_workers: SimulatedNpus,
) -> None:
    folder = folder_of(family)
    case = EngineCase(folder=str(folder), tp=tp, whole_experts=whole_experts, graphs=True)
    other = with_other_weights(folder, tmp_path)
    first, second = answers_of(folder), answers_of(other)
    assert first != second
    folders = [str(each) for each in (folder, other, folder)]
    for found in npu_workers.run("graphs_probe:life", case, folders, PROMPTS, ranks=tp):
        check(found, [first, second, first])


@pytest.mark.nightly
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("npu_workers", ["0.23", "0.30"], indirect=True)
def test_latent_attention_samples_by_each_new_set_of_weights(
    graphs: bool, folder_of: Callable[[str], Path], tmp_path: Path, npu_workers: SimulatedNpus
) -> None:
    """vllm-ascend computes this attention over a prompt in bfloat16, in an engine of any dtype.

    So a near tie may give another greedy token than Hugging Face, but no log-prob is far away.
    """
    folder = folder_of("latent")
    other = with_other_weights(folder, tmp_path)
    case, folders = EngineCase(folder=str(folder), graphs=graphs), [folder, other, folder]
    asked = [str(each) for each in folders]
    (found,) = npu_workers.run("graphs_probe:life", case, asked, PROMPTS)
    assert (min(found.replayed) > 0) == graphs
    gaps = [largest_gap(said, each) for said, each in zip(found.sampled, folders, strict=True)]
    assert max(gaps) < 0.05
    assert largest_gap(found.sampled[0], other) > 1.0


@needs_mindspeed
def test_beside_mindspeed_graphs_answer_with_each_new_set_of_weights(
    folder_of: Callable[[str], Path], tmp_path: Path, npu_workers: SimulatedNpus
) -> None:
    folder = folder_of("qwen3")
    other = with_other_weights(folder, tmp_path)
    folders, case = [str(folder), str(other)], EngineCase(folder=str(folder), graphs=True)
    (found,) = npu_workers.run("graphs_probe:beside_mindspeed", case, folders, PROMPTS)
    check(found, [answers_of(folder), answers_of(other)])


def check(found: GraphLife, answers: list[list[int]]) -> None:
    """Look at rounds of sleeping, loading and answering: each decode step is a replay."""
    assert found.captured == SIZES
    assert found.replayed == [STEPS] * len(answers)
    said = [is_right(each, tokens) for each, tokens in zip(found.greedy, answers, strict=True)]
    assert said == [True] * len(answers)
    # The memory of graphs is no part of what an engine unmaps.
    assert PAGE + 2 * MIB < found.asleep < 64 * MIB


@pytest.mark.parametrize("npu_workers", ["0.23", "0.30"], indirect=True)
def test_npu_graphs_is_needed_while_graphs_are_prepared_for_compiled_models_alone(
    npu_workers: SimulatedNpus,
) -> None:
    ((plain, patched),) = npu_workers.run("graphs_probe:prepares_graphs_uncompiled")
    assert (plain, patched) == (False, True)
