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
