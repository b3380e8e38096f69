"""Gated delta nets over packs, against transformers' layer on one sequence at a time."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import Qwen3_5TextConfig, Qwen3NextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from mindrl.training.fsdp.gated_delta import by_sequence

LENGTHS = [37, 70, 5, 64, 90]
"""Of one chunk of 64 tokens, and of two."""
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "layer_types": ["linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
}
LAYERS = {
    "qwen3_5": lambda: Qwen3_5GatedDeltaNet(Qwen3_5TextConfig(**SIZES), 0),
    "qwen3_next": lambda: Qwen3NextGatedDeltaNet(Qwen3NextConfig(**SIZES), 0),
}


@pytest.mark.parametrize("family", LAYERS)
def test_a_pack_has_outputs_and_gradients_of_its_sequences_one_by_one(family: str) -> None:
    torch.manual_seed(1)
    layer = LAYERS[family]()
    for name, parameter in layer.named_parameters():
        if name.endswith("proj.weight") or "in_proj" in name:
            # Products of size 1.
            torch.nn.init.normal_(parameter, std=32**-0.5)
    hidden_1SH = torch.randn(1, sum(LENGTHS), 32)
    weights_1SH = torch.randn(1, sum(LENGTHS), 32)

    def outcome(forward: Callable[[Tensor], Tensor]) -> tuple[Tensor, list[Tensor]]:
        given = hidden_1SH.clone().requires_grad_()
        made = forward(given)
        leaves = [given, *layer.parameters()]
        return made.detach(), list(torch.autograd.grad((made * weights_1SH).sum(), leaves))

    alone, gradients = outcome(
        lambda hidden: torch.cat([layer(part) for part in hidden.split(LENGTHS, dim=1)], dim=1)
    )
    packed, found = outcome(lambda hidden: by_sequence(layer, hidden, LENGTHS))
    # Float32; rows of a batch are multiplied in another order.
    torch.testing.assert_close(packed, alone, atol=1e-6, rtol=0)
    for ours, theirs in zip(found, gradients, strict=True):
        assert (ours - theirs).norm() <= 1e-6 * theirs.norm()
    # What the layer makes of a pack as one sequence: only its first tokens are right.
    leaking, _ = outcome(layer)
    torch.testing.assert_close(leaking[:, :37], alone[:, :37], atol=1e-6, rtol=0)
    assert (leaking - alone)[:, 37:].abs().max() > 1e-2
