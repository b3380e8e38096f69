"""Whole tensors on rank 0: their order, and the memory of those that wait."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import ModelDescription
from mindrl.models.sharding import Sharding, table_bytes
from mindrl.resharding.gathering import Broadcast
from mindrl.resharding.plan import Topology, Transfer
from mindrl.training.archon.sharding import archon_sharding
from mindrl.training.megatron.sharding import megatron_sharding

MODEL = ModelDescription(
    model_type="qwen3",
    num_hidden_layers=24,
    hidden_size=256,
    intermediate_size=1024,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=32,
    vocab_size=2048,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    attention_bias=False,
    qk_norm=True,
    moe=None,
    mla=None,
)


def sent(found: Broadcast) -> tuple[list[str], int]:
    """Do what rank 0 does in each round; return what it sends and the most bytes that it holds."""
    table, steps = found.whole.table(0), found.plan.of_rank(0)
    sizes = {name: table_bytes({name: each}, found.whole.dtype) for name, each in table.items()}
    receives = [[part for each in step.receives.values() for part in each] for step in steps]
    left = Counter(part.slice.target.name for step in steps for part in step.copies)
    left.update(part.slice.target.name for parts in receives for part in parts)
    held, order, passed, most = set[str](), [*found.order], list[str](), 0

    def write(parts: Sequence[Transfer]) -> None:
        nonlocal most
        for part in parts:
            held.add(part.slice.target.name)
            most = max(most, sum(sizes[name] for name in held))
            left[part.slice.target.name] -= 1
            while order and not left[order[0]]:
                held.discard(order[0])
                passed.append(order.pop(0))

    flying: list[Transfer] = []
    for step, posted in zip(steps, receives, strict=True):
        held.update(part.slice.target.name for part in posted)
        most = max(most, sum(sizes[name] for name in held))
        write(step.copies)
        write(flying)
        flying = posted
    write(flying)
    assert not order
    return passed, most


@pytest.mark.parametrize(
    ("sharding", "layout"),
    [
        (lambda of: megatron_sharding(MODEL, of, dtype="bfloat16"), TrainLayout(tp=2, pp=4)),
        (lambda of: archon_sharding(MODEL, of), TrainLayout(dp=8)),
        (lambda of: archon_sharding(MODEL, of), TrainLayout()),
    ],
    ids=["pipeline", "fully sharded", "one rank"],
)
def test_tensors_are_passed_on_as_they_become_complete(
    sharding: Callable[[TrainLayout], Sharding], layout: TrainLayout
) -> None:
    source, topology = sharding(layout), Topology(ranks_per_node=8)
    found = Broadcast.of(source, MODEL, "bfloat16", topology, 1 << 20)
    passed, most = sent(found)
    assert sorted(passed) == sorted(found.whole.table(0))
    assert most == found.waiting_bytes
    # In the order of the model more than half of it waited.
    assert most < found.whole.held_bytes()[0] / 3
    assert found.staging[0] == found.plan.peak_staging[0] + most
    assert found.staging[1:].tolist() == found.plan.peak_staging[1:].tolist()
