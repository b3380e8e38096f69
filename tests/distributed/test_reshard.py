"""Real models in one layout, the rollout side in another: the same weights, bit by bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from forked_workers import ForkedWorkers
from nightly import at_night_but, crossed
from reshard_messages import Arrived, Way

from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.layouts.rank_order import RankOrder

pytestmark = pytest.mark.distributed

MakeModel = Callable[..., Path]
T, R = TrainLayout, RolloutLayout
PROMPTS = [[5, 9, 40], [200, 3], [17, 17, 17, 17, 90], [2]]


@pytest.fixture(scope="session")
def six_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 folder whose heads can be cut by 2 and by 3; 2 layers, 90 tokens."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=90,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    folder = tmp_path_factory.mktemp("six-heads")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def reshard(workers: ForkedWorkers, ways: list[Way]) -> None:
    (ranks,) = {way.train.world_size for way in ways}
    wrong = workers.run("reshard_probe:resharded", ways, ranks=ranks)
    assert wrong == [[[]] * len(ways)] * ranks


def test_dense_models_on_4_ranks(forked_workers: ForkedWorkers, random_model_of: MakeModel) -> None:
    untied, tied = str(random_model_of("qwen2")), str(random_model_of("qwen2", tied=True))
    qwen3 = str(random_model_of("qwen3"))
    ways = [
        Way(folder=untied, train=T(tp=4), rollout=R(dp=4)),
        Way(folder=untied, train=T(dp=4), rollout=R(tp=4)),
        Way(folder=tied, train=T(tp=2, pp=2), rollout=R(tp=4)),
        Way(folder=qwen3, train=T(pp=2, vpp=2, dp=2), rollout=R(tp=2, dp=2)),
        Way(
            folder=tied,
            train=T(pp=2, dp=2, layers_per_chunk=(1, 3)),
            rollout=R(tp=2, dp=2),
            bucket_bytes=16 << 10,
        ),
        Way(
            folder=qwen3,
            train=T(
                tp=2, dp=2, order=RankOrder(digits=(("dp", 2), ("tp", 2), ("cp", 1), ("pp", 1)))
            ),
            rollout=R(tp=4),
        ),
        Way(folder=untied, train=T(tp=2, pp=2), rollout=R(tp=2, pp=2)),
    ]
    reshard(forked_workers, ways)


def test_tensor_parallel_3_to_2_on_6_ranks(forked_workers: ForkedWorkers, six_heads: Path) -> None:
    way = Way(folder=str(six_heads), train=T(tp=3, dp=2), rollout=R(tp=2, dp=3))
    reshard(forked_workers, [way])


def test_mixtures_of_experts_on_4_ranks(
    forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    folder = str(random_model_of("qwen3_moe"))
    pairs = [
        (T(dp=4, ep=4), R(tp=4)),
        (T(tp=2, dp=2, ep=2), R(tp=4, ep=4)),
        (T(dp=4, ep=4), R(tp=1, dp=4, ep=2)),
        (T(tp=4, ep=1, etp=4), R(tp=4, ep=4)),
        (T(tp=2, dp=2, ep=2, etp=2), R(tp=2, dp=2)),
        (T(dp=4, ep=2), R(tp=2, dp=2, ep=2)),
    ]
    ways = [
        Way(folder=folder, train=train, rollout=rollout, grouped=grouped)
        for grouped, (train, rollout) in crossed((False, True), pairs)
    ]
    reshard(forked_workers, ways)


@pytest.mark.nightly
def test_all_dimensions_at_once_on_8_ranks(
    forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    folder = str(random_model_of("qwen3_moe"))
    pairs = [
        (T(tp=2, pp=2, dp=2, ep=2, etp=2), R(tp=2, pp=2, dp=2, ep=2)),
        (T(pp=2, vpp=2, dp=4, ep=4), R(tp=2, dp=4, ep=8)),
    ]
    ways = [Way(folder=folder, train=train, rollout=rollout) for train, rollout in pairs]
    reshard(forked_workers, ways)


def check_answers(arrived: list[list[Arrived]], count: int) -> None:
    """Compare what each rank's engines said, way by way."""
    assert len(arrived[0]) == count
    for ways in arrived:
        for seen in ways:
            last = seen.answers["update 2"]
            # The same kernels on the same weights: equal to the bit.
            assert last == seen.fresh["update 2"] == seen.answers["woken"]
            # An engine that kept its weights would answer the same after each update.
            assert seen.answers["update 0"] != seen.answers["update 1"] != last
            assert seen.received == seen.needed
            assert seen.parameters_left == 0


@pytest.mark.parametrize("all_ways", at_night_but([False], [False, True]))
@pytest.mark.parametrize("tp", at_night_but([2], [1, 2]))
def test_engines_answer_as_if_they_had_loaded_the_exported_folder(
    forked_workers: ForkedWorkers, random_model_of: MakeModel, tp: int, all_ways: bool
) -> None:
    dense, tied = (str(random_model_of("qwen2", each)) for each in (False, True))
    moe, other = str(random_model_of("qwen3_moe")), str(random_model_of("stablelm"))
    # Transformers cuts it by a plan.
    planned = str(random_model_of("granite", tied=True))
    rollout = R(tp=tp, dp=2 // tp)
    trains = [T(tp=2, etp=2), T(pp=2), T(dp=2, ep=2)]
    rollouts = [rollout, R(tp=2, ep=2)] if tp == 2 else [rollout]
    # Mixtures first: vLLM makes its group for experts with the first engine of a process only.
    ways = [Way(folder=moe, train=train, rollout=to) for to in rollouts for train in trains]
    ways += [Way(folder=moe, train=T(dp=2, ep=2), rollout=to, backend="archon") for to in rollouts]
    ways += [
        Way(folder=moe, train=T(dp=2, ep=2), rollout=rollout, grouped=True),
        Way(folder=dense, train=T(tp=2), rollout=rollout),
        Way(folder=tied, train=T(pp=2), rollout=rollout),
        Way(folder=tied, train=T(pp=2), rollout=rollout, backend="archon"),
        Way(folder=other, train=T(dp=2), rollout=rollout, backend="fsdp"),
        Way(folder=planned, train=T(tp=2), rollout=rollout, backend="fsdp"),
        Way(folder=dense, train=T(dp=2), rollout=rollout, backend="archon"),
        Way(folder=tied, train=T(cp=2), rollout=rollout, backend="archon"),
        Way(folder=dense, train=T(tp=2), rollout=rollout, backend="archon"),
    ]
    if not all_ways:
        # Whole experts from cut ones, or grouped ones to one rank; then a dense model from stages
        # or from cut matrices, or one that PyTorch alone trains.
        ways = [ways[3], ways[-4]] if tp == 2 else [ways[-9], ways[-7], ways[-6]]
    arrived = forked_workers.run("reshard_probe:into_engines", ways, PROMPTS, ranks=2)
    check_answers(arrived, len(ways))


@pytest.mark.nightly
def test_four_engines_answer_so_where_pytorch_cuts_matrices_and_then_rows(
    forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    families: dict[str, Literal["archon", "fsdp"]] = {"qwen2": "archon", "granite": "fsdp"}
    ways = [
        Way(
            folder=str(random_model_of(family)),
            train=T(dp=2, tp=2),
            rollout=R(tp=2, dp=2),
            backend=backend,
        )
        for family, backend in families.items()
    ]
    check_answers(forked_workers.run("reshard_probe:into_engines", ways, PROMPTS, ranks=4), 2)
