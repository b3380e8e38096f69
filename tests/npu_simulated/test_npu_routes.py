"""The experts that the real vllm-ascend chooses on simulated NPUs, against Hugging Face's."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_messages import EngineCase, Tokens
from simulated import SimulatedNpus
from test_npu_engine import PROMPTS, folder_of
from torch import Tensor
from transformers import AutoModelForCausalLM

from mindrl.batch.route_keys import content_key

pytestmark = [pytest.mark.npu_simulated, pytest.mark.nightly]

__all__ = ["folder_of"]


def chosen_experts(model: torch.nn.Module, token_ids: Tokens) -> Tensor:
    """Return the experts [T, L, K] of each token, in ascending order."""
    found: list[Tensor] = []
    gates = [module for name, module in model.named_modules() if name.endswith("mlp.gate")]
    # A gate returns its logits, the weights of the chosen experts, and their numbers.
    hooks = [
        gate.register_forward_hook(lambda _, __, out: found.append(out[2].sort(-1).values))
        for gate in gates
    ]
    with torch.no_grad():
        model(torch.tensor([token_ids]))
    for hook in hooks:
        hook.remove()
    return torch.stack(found, 1)


@pytest.mark.parametrize("npu_workers", ["0.23", "0.30"], indirect=True)
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("family", ["qwen3_moe", "latent"])
def test_each_token_has_the_experts_of_hugging_face(
    family: str, tp: int, folder_of: Callable[[str], Path], npu_workers: SimulatedNpus
) -> None:
    case = EngineCase(
        folder=str(folder_of(family)), tp=tp, whole_experts=family == "qwen3_moe", routes=True
    )
    (said, routes), *others = npu_workers.run("engine_probe:routed", case, PROMPTS, ranks=tp)
    assert all(not kept for _, kept in others), "the first rank of a replica keeps them"
    model = AutoModelForCausalLM.from_pretrained(case.folder, dtype=torch.float32)
    sampled = said.token_ids_N.split(said.lengths_B.tolist())
    assert len(routes) == len(PROMPTS)
    for prompt, response in zip(PROMPTS, sampled, strict=True):
        ids = (*prompt, *response.tolist())
        part = routes[content_key(ids)]
        # Numbers are expert + 1; the last token was never read.
        ours = part.routes_TLK[:-1].long().sort(-1).values - 1
        assert torch.equal(ours, chosen_experts(model, ids)[:-1])
