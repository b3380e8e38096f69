"""The operations of a forward pass, against sums that can be done by hand."""

from pathlib import Path

from mindrl.models.decoder import forward_cost
from mindrl.models.description import read_description

MODELS = Path(__file__).parents[3] / "configs" / "models"


def test_a_token_of_qwen2_5_7b_costs_twice_its_weights_without_embedding_norms_and_biases() -> None:
    linear, quadratic = forward_cost(read_description(str(MODELS / "Qwen2.5-7B")))
    attention = 3584 * (28 + 4 + 4) * 128 + 28 * 128 * 3584
    feed_forward = 3 * 3584 * 18944
    head = 3584 * 152064
    assert linear == 2 * (28 * (attention + feed_forward) + head) == 14_140_571_648
    # The published 7,615,616,512 parameters, less embedding, norms and biases.
    assert linear == 2 * (7_615_616_512 - head - 57 * 3584 - 28 * (28 + 4 + 4) * 128)
    # Two operations per width of a head in each of two products; half of the pairs are causal.
    assert quadratic == 28 * 28 * 2 * (128 + 128) / 2 == 200_704


def test_a_token_of_a_mixture_meets_its_8_experts_of_128_and_the_whole_router() -> None:
    linear, _ = forward_cost(read_description(str(MODELS / "Qwen3-30B-A3B")))
    attention = 2048 * (32 + 4 + 4) * 128 + 32 * 128 * 2048
    experts = 8 * 3 * 2048 * 768
    assert linear == 2 * (48 * (attention + 128 * 2048 + experts) + 2048 * 151936)


def test_a_head_of_latent_attention_is_wider_in_its_queries_than_in_its_values() -> None:
    linear, quadratic = forward_cost(read_description(str(MODELS / "DeepSeek-V3"), to_plan=True))
    assert quadratic == 61 * 128 * ((128 + 64) + 128)
    # 37 billion active parameters, as published; the embedding is not multiplied.
    assert abs(linear / 2 + 129280 * 7168 - 37.5e9) < 0.1e9


def test_a_tied_head_costs_the_same_as_one_of_its_own() -> None:
    untied = read_description(str(MODELS / "Qwen2.5-7B"))
    tied = type(untied)(**{**vars(untied), "tie_word_embeddings": True})
    assert forward_cost(tied) == forward_cost(untied)
