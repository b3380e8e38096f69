"""Several teachers by the source of a row, against Hugging Face's models; they take turns."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from mindrl.batch.sequences import Sequences
from mindrl.config.run import RunConfig
from mindrl.launch.parts import worker_handle
from mindrl.memory.schedule import Region
from mindrl.platform.host_memory import rounded
from mindrl.preflight.run_shardings import unordered_shardings

pytestmark = pytest.mark.distributed

SOURCES = ("math", "code", "", "math", "code", "math", "math", "code")
"""Of the eight sequences of a batch: replicas cannot divide those of any teacher but one."""
WAYS: Mapping[str, Mapping[str, Any]] = {
    "one layout": {},
    "replicas of their own": {
        "rl_config.actor_resource.num_npus": 2,
        "actor_config.backend": "megatron:t2",
        "teacher_config.backend": "archon:d2",
    },
}


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make three teachers of the same sizes, which are not those of the policy."""
    sizes = {"hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128}
    ends = {"bos_token_id": None, "eos_token_id": 1, "tie_word_embeddings": False}
    config = Qwen2Config(vocab_size=128, initializer_range=0.1, **sizes, **heads, **ends)
    folders = {}
    for seed, source in enumerate(("", "math", "code")):
        torch.manual_seed(seed)
        folders[source] = tmp_path_factory.mktemp("teacher")
        Qwen2ForCausalLM(config).save_pretrained(folders[source])
    return folders


@pytest.fixture
def config(
    teachers: Mapping[str, Path],
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
) -> Callable[[Mapping[str, Any]], RunConfig]:
    """Return the configuration of a run with these teachers."""

    def make(changes: Mapping[str, Any]) -> RunConfig:
        models = [{"data_source": each, "load": str(teachers[each])} for each in ("math", "code")]
        given = {
            "rl_config.adv_estimator": "teacher",
            "teacher_config.load": str(teachers[""]),
            "teacher_config.models": models,
            "teacher_config.candidates": 4,
        }
        return run_config(random_model(False), given | dict(changes))

    return make


def batch(config: RunConfig) -> Sequences:
    """Return eight sequences of other lengths; the response begins after three tokens."""
    generator = torch.Generator().manual_seed(5)
    lengths_B = torch.arange(len(SOURCES)) + 7
    places_T = torch.arange(int(lengths_B.max()))
    there_BT = places_T < lengths_B[:, None]
    drawn_BT = torch.randint(2, 90, there_BT.shape, generator=generator)
    teacher = config.teacher_config
    assert teacher is not None
    return Sequences(
        tokens_BT=drawn_BT * there_BT,
        lengths_B=lengths_B,
        response_mask_BT=there_BT & (places_T >= 3),
        teacher_B=torch.tensor([teacher.number(source) for source in SOURCES]),
    )


def by_hand(teachers: Mapping[str, Path], given: Sequences) -> tuple[Tensor, Tensor]:
    """Return the log-probs of the tokens, [B, T], and of the four likeliest of the policy's."""
    found_BT = torch.zeros(given.tokens_BT.shape)
    most_BTK = torch.zeros(*given.tokens_BT.shape, 4)
    for row, source in enumerate(SOURCES):
        model = AutoModelForCausalLM.from_pretrained(teachers[source], dtype=torch.float32)
        tokens_T = given.tokens_BT[row, : int(given.lengths_B[row])]
        with torch.no_grad():
            logprobs_TV = model(tokens_T[None]).logits[0].log_softmax(dim=-1)
        for at in range(3, len(tokens_T)):
            found_BT[row, at] = logprobs_TV[at - 1, tokens_T[at]]
            most_BTK[row, at] = logprobs_TV[at - 1, :96].topk(4).values
    return found_BT, most_BTK


@pytest.mark.parametrize("way", WAYS)
def test_each_row_is_read_by_the_teacher_of_its_source_and_one_is_on_the_device(
    way: str,
    teachers: dict[str, Path],
    config: Callable[[Mapping[str, Any]], RunConfig],
    forked_workers: ForkedWorkers,
) -> None:
    plan = unordered_shardings(config(WAYS[way])).ordered.plan
    given = batch(plan.config)
    group = forked_workers.start(plan)
    workers = worker_handle(group, plan)
    workers.record_memory(is_on=True)
    read = workers.compute_teacher_log_prob(given)
    # The last teacher is on the device; the next call begins with the first.
    again = workers.compute_teacher_log_prob(given)
    own = workers.compute_log_prob(replace(given, teacher_B=None))
    (moments, *_), planned = workers.flush_moments(), workers.memory_plan()
    arena = workers.flush_metrics()["memory/host_arena_bytes_max"]
    group.stop()

    expected_BT, most_BTK = by_hand(teachers, given)
    # float32 log-probs of networks with random weights, in another order of additions.
    torch.testing.assert_close(read.logprobs_BT, expected_BT, atol=2e-5, rtol=0)
    assert read.likely is not None
    mask_BT = given.response_mask_BT
    assert read.likely.counts_B.equal(mask_BT.sum(dim=1))
    found_RK = read.likely.logprobs_KR.T
    torch.testing.assert_close(found_RK, most_BTK[mask_BT], atol=2e-5, rtol=0)
    assert torch.equal(read.logprobs_BT, again.logprobs_BT)
    assert (own.logprobs_BT - expected_BT)[mask_BT].abs().mean() > 0.5

    weights = int(planned.regions[Region.TEACHER_WEIGHTS][0])
    there = {each.region_bytes.get(Region.TEACHER_WEIGHTS.value, 0) for each in moments}
    assert there == {0, weights}
    assert planned.waiting is not None
    # The arena holds two more teachers, and did not grow beyond the plan.
    assert planned.waiting[0] >= 2 * weights
    assert arena == rounded(int(planned.host_bytes.max()))
