"""An engine in int8 holds and computes what the formulas of W8A8 give, load after load.

A weight is a number of int8 times the scale of its row, which is the largest weight of the row
divided by 127; an input is rounded likewise, token by token. Shapes: N outputs, K inputs, T tokens.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from int8_messages import Int8Life, Rounded
from nightly import at_night_but
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Linear, Module
from transformers import AutoModelForCausalLM, PreTrainedModel

pytestmark = pytest.mark.distributed

PROMPTS = ((5, 9, 40), tuple(range(20, 41)), (7, 7, 7, 7), (200, 3))
ENGINES = {
    "qwen2": ("qwen2", 1, "float32"),
    "qwen2 TP2": ("qwen2", 2, "float32"),
    "qwen3 in bfloat16": ("qwen3", 1, "bfloat16"),
}
ERRORS = {"float32": 0, "bfloat16": 1}
"""Of numbers that are read back through products: a number of 127 has an error in bfloat16."""
CUT_BY_COLUMNS = ("o_proj", "down_proj")
Folders = dict[str, str]


@pytest.fixture(scope="module", params=at_night_but(["qwen2", "qwen2 TP2"], ENGINES))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def folders(
    name: str, random_model_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Folders:
    """Two sets of weights of an engine's model, the second as after an update."""
    first, later = random_model_of(ENGINES[name][0]), tmp_path_factory.mktemp("later")
    model = AutoModelForCausalLM.from_pretrained(first)
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * parameter.std() * torch.randn_like(parameter))
    model.save_pretrained(later)
    return {"first": str(first), "later": str(later), "after a sleep": str(first)}


@pytest.fixture(scope="module")
def lives(name: str, folders: Folders, forked_workers: ForkedWorkers) -> list[Int8Life]:
    """What each rank saw."""
    _, tp, dtype = ENGINES[name]
    arguments = (folders["first"], folders["later"], tp, dtype, PROMPTS)
    return forked_workers.run("int8_probe:life_in_int8", *arguments, ranks=tp)


def test_after_each_load_an_engine_holds_the_weights_rounded_row_by_row_to_the_bit(
    name: str, lives: list[Int8Life], folders: Folders
) -> None:
    _, ranks, dtype = ENGINES[name]
    for rank, life in enumerate(lives):
        for load, folder in folders.items():
            expected = expected_of_a_rank(folder, rank, ranks, getattr(torch, dtype))
            found = life.rounded[load]
            assert found.keys() == expected.keys()
            wrong = [
                local
                for local, (numbers_NK, scale_N1) in expected.items()
                if (found[local][0].int() - numbers_NK.int()).abs().max() > ERRORS[dtype]
                or not torch.equal(found[local][1], scale_N1)
            ]
            assert not wrong, f"{load}: {wrong}"
        first, later = life.rounded["first"], life.rounded["later"]
        assert not any(torch.equal(first[each][0], later[each][0]) for each in first)


def test_its_log_probs_are_those_of_written_out_products_of_int8(
    name: str, lives: list[Int8Life], folders: Folders
) -> None:
    _, ranks, dtype = ENGINES[name]
    if dtype != "float32":
        pytest.skip("activations in bfloat16 are up to 0.3 nats from those written out in float32")
    for load, folder in folders.items():
        written_out = gaps(in_int8(folder, ranks, getattr(torch, dtype)), lives[0], load)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        plain = gaps(model, lives[0], load)
        # Sums of float32 in another order, through 4 layers; an input that is rounded to the other
        # side of a half adds more.
        assert written_out.max() < 1e-4
        # What rollout correction is for.
        assert 0.01 < plain.mean() < 0.2


def test_the_plan_counts_the_bytes_that_an_engine_in_int8_has_and_its_sleep_frees_them(
    lives: list[Int8Life],
) -> None:
    for life in lives:
        found, matrices = life.bytes, life.rounded["first"].values()
        assert found.planned == found.reported == found.loaded
        assert found.asleep == 0
        # A packed matrix has memory only once its weights have arrived.
        assert found.loaded - found.awake == sum(numbers_NK.numel() for numbers_NK, _ in matrices)


def test_norms_embedding_and_head_keep_the_type_of_the_engine(
    name: str, lives: list[Int8Life]
) -> None:
    _, _, dtype = ENGINES[name]
    for life in lives:
        assert {*life.whole.values()} == {dtype}
        assert {"lm_head.weight", "model.norm.weight"} <= life.whole.keys()


def rounded_rows(weight_NK: Tensor) -> Rounded:
    """Return int8 numbers and the scale of each row."""
    scale_N1 = weight_NK.float().abs().max(dim=1, keepdim=True).values / 127
    return torch.round(weight_NK.float() / scale_N1).to(torch.int8), scale_N1


def expected_of_a_rank(
    folder: str, rank: int, ranks: int, dtype: torch.dtype
) -> dict[str, Rounded]:
    """Round the matrices of a folder as one rank holds them: fused, and cut by rows or columns."""
    files = load_file(Path(folder) / "model.safetensors")
    found = {}
    for layer in range(4):
        here = f"model.layers.{layer}."
        fused = {
            "self_attn.qkv_proj": [f"self_attn.{letter}_proj" for letter in "qkv"],
            "self_attn.o_proj": ["self_attn.o_proj"],
            "mlp.gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"],
            "mlp.down_proj": ["mlp.down_proj"],
        }
        for local, names in fused.items():
            dim = 1 if local.endswith(CUT_BY_COLUMNS) else 0
            parts = [files[f"{here}{each}.weight"].chunk(ranks, dim)[rank] for each in names]
            found[f"{here}{local}.weight"] = rounded_rows(torch.cat(parts).to(dtype))
    return found


class RoundedLinear(Module):
    """A linear layer in int8, each part of its inputs with scales of its own."""

    def __init__(self, linear: Linear, parts: int, dtype: torch.dtype) -> None:
        super().__init__()
        pieces = linear.weight.data.to(dtype).chunk(parts, 1)
        self.pieces = [rounded_rows(piece) for piece in pieces]
        self.bias = linear.bias

    def forward(self, inputs_TK: Tensor) -> Tensor:
        """Multiply int8 numbers, then by both scales."""
        total = torch.zeros(())
        for x_TK, (numbers_NK, scale_N1) in zip(
            inputs_TK.chunk(len(self.pieces), -1), self.pieces, strict=True
        ):
            scale_T1 = x_TK.abs().amax(-1, keepdim=True) / 127
            product_TN = torch.round(x_TK / scale_T1).double() @ numbers_NK.double().T
            total = total + product_TN * scale_T1 * scale_N1[:, 0]
        return total.float() if self.bias is None else total.float() + self.bias


def in_int8(folder: str, ranks: int, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model of a folder in float32, with the matrices of its layers in int8."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for path, module in [*model.model.layers.named_modules()]:
        if isinstance(module, Linear):
            parent, _, name = path.rpartition(".")
            parts = ranks if name in CUT_BY_COLUMNS else 1
            replaced = RoundedLinear(module, parts, dtype)
            setattr(model.model.layers.get_submodule(parent), name, replaced)
    return model


def gaps(model: PreTrainedModel, life: Int8Life, load: str) -> Tensor:
    """Return how far the engine's log-probs of its tokens are from a model's, in nats."""
    found = []
    for prompt, (tokens, logprobs) in zip(PROMPTS, life.answers[load], strict=True):
        with torch.no_grad():
            logits_TV = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        chosen_T = logits_TV.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        found.append((chosen_T - torch.tensor(logprobs)).abs())
    return torch.cat(found)
