"""The tables of the torch-native engine are what FSDP2 and DTensor really leave to each rank."""

from dataclasses import replace

import pytest
from forked_workers import ForkedWorkers

from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder
from mindrl.models.description import ModelDescription, MoeDescription
from mindrl.models.gated_delta import GatedDeltaNet
from mindrl.training.archon.sharding import archon_sharding

pytestmark = pytest.mark.distributed

DENSE = ModelDescription(
    model_type="qwen2",
    num_hidden_layers=1,
    hidden_size=10,
    intermediate_size=12,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=2,
    vocab_size=7,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    attention_bias=True,
)
MIXTURE = replace(
    DENSE,
    attention_bias=False,
    qk_norm=True,
    moe=MoeDescription(num_experts=6, num_experts_per_tok=2, intermediate_size=4),
)
# Ranks of t2 have 14 of 28 rows of queries, keys and values, and 1 of 2 decays.
DELTA = replace(
    DENSE,
    attention_bias=False,
    qk_norm=True,
    num_hidden_layers=2,
    delta=GatedDeltaNet(
        layers=(0,), key_heads=2, value_heads=2, key_width=3, value_width=8, convolution=4
    ),
)
Case = tuple[ModelDescription, TrainLayout, int | None]
CASES: dict[int, list[Case]] = {
    1: [(DENSE, TrainLayout(), None), (MIXTURE, TrainLayout(), None)],
    2: [
        (DENSE, TrainLayout(dp=2), None),
        (DENSE, TrainLayout(cp=2), 1),
        (DENSE, TrainLayout(tp=2), None),
        (MIXTURE, TrainLayout(dp=2, ep=2), None),
        (MIXTURE, TrainLayout(tp=2, etp=2), None),
        (DELTA, TrainLayout(tp=2), None),
    ],
    # Of 10 rows 4, 4 and 2; of 4 rows 2, 2 and none.
    3: [(DENSE, TrainLayout(dp=3), None), (MIXTURE, TrainLayout(dp=3), None)],
    4: [
        (DENSE, TrainLayout(tp=4), None),
        (DENSE, TrainLayout(dp=2, tp=2), None),
        # Of 14 rows 7: all queries and keys, and some values.
        (DELTA, TrainLayout(dp=2, tp=2), None),
        (DENSE, TrainLayout(dp=2, cp=2), None),
        # Two runs of two neighbours.
        (DENSE, TrainLayout(dp=4), 2),
        (
            DENSE,
            TrainLayout(dp=2, tp=2, order=RankOrder(digits=(("dp", 2), ("tp", 2), ("pp", 1)))),
            None,
        ),
        # Three experts over two ranks: two and one.
        (MIXTURE, TrainLayout(dp=4, ep=2), None),
        (MIXTURE, TrainLayout(tp=2, dp=2, ep=2), None),
    ],
}


@pytest.mark.parametrize("ranks", list(CASES))
def test_rows_and_memory_are_those_that_the_tables_say(
    ranks: int, forked_workers: ForkedWorkers
) -> None:
    found = forked_workers.run("archon_cuts_probe:cuts", CASES[ranks], ranks=ranks)
    for at, (model, layout, fsdp_size) in enumerate(CASES[ranks]):
        expected = archon_sharding(model, layout, fsdp_size=fsdp_size).held_bytes()
        assert [rank[at] for rank in found] == [([], size) for size in expected], layout
