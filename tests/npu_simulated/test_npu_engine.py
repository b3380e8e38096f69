"""mindrl's engine with the real vllm and vllm-ascend on simulated NPUs, against Hugging Face.

Sizes of the mixture: hidden 128, of an expert 64, so that both ways to lay a gate and its up
projection out have one shape, and vllm-ascend, which tells them apart by it, cannot.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_messages import EngineCase, EngineLife, Tokens
from simulated import Machine, SimulatedNpus
from test_training_latent import MODELS, save_random
from transformers import AutoModelForCausalLM

from mindrl.batch.rollouts import Responses
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.npu_simulated

MIB = 1 << 20
MakeModel = Callable[..., Path]
FolderOf = Callable[[str], Path]
PROMPTS: list[Tokens] = [(1, 2, 3), (4, 5, 6, 7, 8, 9, 10), (11,), (3,) * 40]
PAGE, BLOCK = 2 * MIB, 20 * MIB
"""What CANN gives out, and what torch_npu takes for tensors of 1 to 10 MiB."""


@pytest.fixture(scope="module")
def folder_of(random_model_of: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """A random model of a family; `latent` has latent attention, and rotary tables without yarn."""
    latent = tmp_path_factory.mktemp("latent")
    save_random(MODELS["V3, whole queries"], latent)
    return lambda family: latent if family == "latent" else random_model_of(family)


@pytest.fixture(scope="module")
def expected(folder_of: FolderOf) -> Callable[[str], list[int]]:
    """The 12 likeliest tokens after each prompt, by Hugging Face."""
    found: dict[str, list[int]] = {}

    def tokens(family: str) -> list[int]:
        if family not in found:
            folder = folder_of(family)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            found[family] = [token for prompt in PROMPTS for token in likeliest(model, prompt)]
        return found[family]

    return tokens


def likeliest(model: torch.nn.Module, prompt: Tokens) -> list[int]:
    """Return the 12 likeliest tokens after a prompt."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(12):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def is_right(answers: Responses, expected: list[int]) -> bool:
    return bool(answers.token_ids_N.tolist() == expected)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "tp", "whole_experts"),
    [
        ("qwen3", 1, False),
        ("qwen3_moe", 2, True),
        ("latent", 1, False),
        ("latent", 2, False),
        ("qwen3", 2, False),
        ("qwen3_moe", 1, False),
        ("qwen3_moe", 2, False),
    ],
)
def test_an_engine_sleeps_wakes_and_is_filled_in_place_and_says_what_hugging_face_says(
    family: str,
    tp: int,
    whole_experts: bool,
    folder_of: FolderOf,
    expected: Callable[[str], list[int]],
    npu_workers: SimulatedNpus,
) -> None:
    case = EngineCase(folder=str(folder_of(family)), tp=tp, whole_experts=whole_experts)
    for found in npu_workers.run("engine_probe:life", case, PROMPTS, ranks=tp):
        # Rotary keys of latent attention are small tensors, which are in pages of their own.
        check(found, expected(family), pages=2 if family == "latent" else 0)


@pytest.mark.parametrize("npu_workers", ["0.30"], indirect=True)
def test_the_newer_generation_says_what_hugging_face_says(
    folder_of: FolderOf, expected: Callable[[str], list[int]], npu_workers: SimulatedNpus
) -> None:
    """0.30 loses a rank's expert map in its sleep, and by default casts weights to a layout.

    Experts are in the order of the checkpoint on both ranks, or answers would differ.
    """
    case = EngineCase(folder=str(folder_of("qwen3_moe")), tp=2, whole_experts=True)
    for found in npu_workers.run("engine_probe:life", case, PROMPTS, ranks=2):
        check(found, expected("qwen3_moe"))


def check(found: EngineLife, tokens: list[int], *, pages: int = 0) -> None:
    """Look at three rounds of sleeping, loading and answering; a cache may take more pages."""
    assert found.shapes_agree
    assert found.moved == []
    # Weights that come anyway are not copied to the host and back.
    assert found.kept == [False] * 3
    assert found.random_states == 1
    assert [is_right(answers, tokens) for answers in found.greedy] == [True] * 3
    started, first, *later = found.taken
    # torch_npu keeps a page for itself, and behind the first answers a block for their mask.
    assert first["asleep"] == PAGE
    assert [each["asleep"] for each in later] == [first["asleep"] + BLOCK] * 2
    assert first["awake"] == started["started"]
    weights, cache = (found.sizes[tag] for tag in ("weights", "kv_cache"))
    assert weights <= first["weights"] - first["asleep"] < weights + 3 * PAGE
    assert cache <= first["awake"] - first["weights"] <= BLOCK + pages * PAGE
    one, *others = found.sampled
    assert all(torch.equal(one.token_ids_N, other.token_ids_N) for other in others)
    assert bool((one.logprobs_N < 0).all())
    firsts = [float(logprobs[0]) for _, logprobs in one.each()]
    assert found.read == pytest.approx(firsts, abs=1e-5)


# The short suite has the second one within whole steps: test_npu_worker.py.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "layout", "case"),
    [
        ("qwen3", TrainLayout(tp=2), {}),
        ("qwen3_moe", TrainLayout(dp=2, ep=2), {"tp": 2}),
        ("qwen3", TrainLayout(pp=2), {"tp": 2}),
        ("qwen3_moe", TrainLayout(tp=2, ep=2), {"tp": 2, "whole_experts": True}),
    ],
)
def test_a_reshard_over_hccl_fills_the_engine_and_each_slice_is_that_of_its_source(
    family: str,
    layout: TrainLayout,
    case: dict[str, int],
    folder_of: FolderOf,
    expected: Callable[[str], list[int]],
    npu_workers: SimulatedNpus,
) -> None:
    asked = EngineCase(folder=str(folder_of(family)), **case)
    for answers in npu_workers.run("engine_probe:resharded", asked, layout, PROMPTS, ranks=2):
        assert [is_right(each, expected(family)) for each in answers] == [True] * 2


def test_streams_that_are_late_change_no_answer(
    folder_of: FolderOf, expected: Callable[[str], list[int]], npu_workers: SimulatedNpus
) -> None:
    case, machine = EngineCase(folder=str(folder_of("qwen3"))), Machine(delay_us=300)
    (found,) = npu_workers.run("engine_probe:life", case, PROMPTS, machine=machine)
    check(found, expected("qwen3"))


def test_an_engine_that_was_half_awake_sleeps_and_without_room_it_says_so_and_goes_on_sleeping(
    folder_of: FolderOf, expected: Callable[[str], list[int]], npu_workers: SimulatedNpus
) -> None:
    case = EngineCase(folder=str(folder_of("qwen3")))
    machine = Machine(capacity_bytes=256 * MIB)
    ((left, said, answers),) = npu_workers.run(
        "engine_probe:crowded", case, PROMPTS, machine=machine
    )
    assert left == PAGE
    # Without a look at the device vllm-ascend's allocator ends the process.
    assert said.startswith("out of memory: weights of the engine need 4.0 MiB; the device has ")
    assert is_right(answers, expected("qwen3"))


needs_mindspeed = pytest.mark.skipif(
    "MINDSPEED" not in os.environ, reason="MINDSPEED names no checkout of the pinned commit"
)


@needs_mindspeed
def test_beside_mindspeed_the_engine_says_the_same(
    folder_of: FolderOf, expected: Callable[[str], list[int]], npu_workers: SimulatedNpus
) -> None:
    case = EngineCase(folder=str(folder_of("qwen3")))
    (found,) = npu_workers.run("engine_probe:beside_mindspeed", case, PROMPTS)
    check(found, expected("qwen3"))


@needs_mindspeed
def test_mindspeeds_dummy_still_has_to_go_before_the_engine_is_built(
    folder_of: FolderOf, npu_workers: SimulatedNpus
) -> None:
    """If this fails, `npu_without_dummy_flash_attn` is no longer needed."""
    case = EngineCase(folder=str(folder_of("qwen3")))
    (said,) = npu_workers.run("engine_probe:beside_the_dummy", case)
    assert said == "No module named 'flash_attn.ops'; 'flash_attn' is not a package"
