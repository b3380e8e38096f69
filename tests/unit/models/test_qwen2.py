"""The sharding tables of Qwen2: complete, without overlap, and true to the real model."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen2ForCausalLM

from mindrl.models.description import ModelDescription, read_description
from mindrl.models.placement import ShardingTable, slices, volume
from mindrl.models.qwen2 import logical_shapes, padded_vocab_size, training_table

MakeModel = Callable[[bool], Path]
REPLICATED = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight")


def describe(  # noqa: PLR0917 - sizes in the order of the model
    layers: int, groups: int, per_group: int, head_dim: int, ffn: int, vocab: int, tied: bool
) -> ModelDescription:
    heads = groups * per_group
    return ModelDescription(
        model_type="qwen2",
        num_hidden_layers=layers,
        hidden_size=heads * head_dim,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=head_dim,
        vocab_size=vocab,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )


@st.composite
def models(draw: st.DrawFn) -> tuple[ModelDescription, int]:
    """Draw sizes that the tensor-parallel size divides, and any vocabulary."""
    tp = draw(st.sampled_from([1, 2, 3, 4]))
    model = describe(
        layers=draw(st.integers(1, 2)),
        groups=tp * draw(st.integers(1, 3)),
        per_group=draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from([1, 2])),
        ffn=tp * draw(st.integers(1, 5)),
        vocab=draw(st.integers(4 * tp, 40)),
        tied=draw(st.booleans()),
    )
    return model, tp


def tables(model: ModelDescription, tp: int) -> list[ShardingTable]:
    return [training_table(model, tp=tp, tp_rank=rank) for rank in range(tp)]


def placements(table: ShardingTable) -> Iterator[tuple[str, tuple[slice, ...], tuple[slice, ...]]]:
    for entry in table.values():
        for placement in entry.placements:
            yield placement.tensor, slices(placement.source), slices(placement.local)


@settings(deadline=None)
@given(models())
def test_the_ranks_together_hold_each_element_once_and_each_norm_on_every_rank(
    drawn: tuple[ModelDescription, int],
) -> None:
    model, tp = drawn
    held = {name: torch.zeros(shape) for name, shape in logical_shapes(model).items()}
    for table in tables(model, tp):
        for name, source, _ in placements(table):
            held[name][source] += 1
    for name, count in held.items():
        times = tp if name.endswith(REPLICATED) else 1
        assert torch.equal(count, torch.full_like(count, times)), name


@settings(deadline=None)
@given(models())
def test_each_local_element_is_filled_once_and_only_the_vocabulary_is_padded(
    drawn: tuple[ModelDescription, int],
) -> None:
    model, tp = drawn
    padding = 0
    for table in tables(model, tp):
        for name, entry in table.items():
            filled = torch.zeros(entry.shape)
            for placement in entry.placements:
                assert volume(placement.source) == volume(placement.local)
                filled[slices(placement.local)] += 1
            assert filled.max() == 1, name
            empty = int((filled == 0).sum())
            assert not empty or name in {"embedding.word_embeddings.weight", "output_layer.weight"}
            padding += empty
    vocabularies = 1 if model.tie_word_embeddings else 2
    assert padding == vocabularies * model.hidden_size * (-model.vocab_size % tp)


@settings(deadline=None)
@given(models())
def test_what_is_cut_by_the_tables_is_put_together_again_without_a_difference(
    drawn: tuple[ModelDescription, int],
) -> None:
    model, tp = drawn
    generator = torch.Generator().manual_seed(0)
    whole = {
        name: torch.randn(shape, generator=generator)
        for name, shape in logical_shapes(model).items()
    }
    back = {name: torch.full_like(tensor, torch.nan) for name, tensor in whole.items()}
    for table in tables(model, tp):
        for entry in table.values():
            local = torch.zeros(entry.shape)
            for placement in entry.placements:
                local[slices(placement.local)] = whole[placement.tensor][slices(placement.source)]
            for placement in entry.placements:
                back[placement.tensor][slices(placement.source)] = local[slices(placement.local)]
    for name, tensor in whole.items():
        assert torch.equal(back[name], tensor), name


def numbered(model: ModelDescription) -> dict[str, Tensor]:
    """Make biases whose values say which head they belong to."""
    heads = {"q": model.num_attention_heads, "k": 2, "v": 2}
    return {
        f"model.layers.0.self_attn.{letter}_proj.bias": torch.arange(count).repeat_interleave(
            model.head_dim
        )
        + offset
        for (letter, count), offset in zip(heads.items(), (0, 100, 200), strict=True)
    }


def test_qkv_is_interleaved_by_group_queries_then_key_then_value() -> None:
    model = describe(layers=1, groups=2, per_group=2, head_dim=1, ffn=2, vocab=8, tied=True)
    whole = numbered(model)
    for rank, expected in enumerate(([0, 1, 100, 200], [2, 3, 101, 201])):
        entry = training_table(model, tp=2, tp_rank=rank)[
            "decoder.layers.0.self_attention.linear_qkv.bias"
        ]
        local = torch.zeros(entry.shape, dtype=torch.int64)
        for placement in entry.placements:
            local[slices(placement.local)] = whole[placement.tensor][slices(placement.source)]
        assert local.tolist() == expected


def test_gate_and_up_are_each_cut_by_rank_before_they_are_fused() -> None:
    model = describe(layers=1, groups=2, per_group=1, head_dim=1, ffn=4, vocab=8, tied=True)
    entry = training_table(model, tp=2, tp_rank=1)["decoder.layers.0.mlp.linear_fc1.weight"]
    assert entry.shape == (4, 2)
    assert [
        (part.tensor.split(".")[-2], part.source[0], part.local[0]) for part in entry.placements
    ] == [
        ("gate_proj", (2, 4), (0, 2)),
        ("up_proj", (2, 4), (2, 4)),
    ]


@pytest.mark.parametrize(
    ("vocab", "tp", "padded"), [(96, 1, 96), (96, 2, 96), (97, 2, 98), (97, 4, 100), (7, 4, 8)]
)
def test_the_vocabulary_is_rounded_up_to_a_multiple_of_the_ranks(
    vocab: int, tp: int, padded: int
) -> None:
    model = describe(layers=1, groups=4, per_group=1, head_dim=1, ffn=4, vocab=vocab, tied=True)
    assert padded_vocab_size(model, tp) == padded
    rows = [table["embedding.word_embeddings.weight"].shape[0] for table in tables(model, tp)]
    assert rows == [padded // tp] * tp


@pytest.mark.parametrize("tied", [True, False])
def test_logical_tensors_are_those_of_the_real_model_and_of_its_file(
    tied: bool, random_model: MakeModel
) -> None:
    folder = random_model(tied)
    described = logical_shapes(read_description(str(folder)))
    real = {
        name: tuple(tensor.shape)
        for name, tensor in Qwen2ForCausalLM.from_pretrained(folder).state_dict().items()
    }
    assert real.pop("lm_head.weight") == (96, 128)
    filed = {
        name: tuple(tensor.shape)
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    assert described == filed
    assert ("lm_head.weight" in described) == (not tied)
    described.pop("lm_head.weight", None)
    assert described == real
