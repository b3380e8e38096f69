"""Gated delta nets: the engine's layer against the recurrence, updates against Hugging Face's loop.

Shapes: T tokens, C channels, H value heads, K and V widths of their keys and values.
"""

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from answer_loops import OPTIMIZER, is_the_same_from_step_2, learned
from forked_workers import ForkedWorkers
from gated_delta_messages import Sizes, Step
from nightly import at_night_but
from test_supervised import KEYS, ROWS, TWO, demonstrations, of_hugging_face
from torch import Tensor
from torch.nn.functional import silu, softplus

from mindrl.config.run import RunConfig
from mindrl.trainer.supervised_trainer import sequences_of

pytestmark = pytest.mark.distributed

SIZES = Sizes(key_heads=2, value_heads=4, key_width=3, value_width=5, convolution=4, slots=6)
LENGTHS = {5: [70, 1, 1, 9], 2: [3, 1, 1], 0: [1, 1], 3: [6], 1: [5, 1], 4: [8, 1]}
"""New tokens of each request, by its place, in the steps that it takes part in, the last ones.

Prompts of 5 and 8 tokens begin together: one is padded, and its state is read in the next step.
"""
_BY_TENSOR = TWO | {"actor_config.tensor_model_parallel_size": 2}
_BY_STAGE = TWO | {"actor_config.pipeline_model_parallel_size": 2}
_BY_EXPERT = {"actor_config.expert_model_parallel_size": 2}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "d1": {"actor_config.backend": "fsdp:d1"},
    "d2": TWO | {"actor_config.backend": "fsdp:d2"},
    "t2": _BY_TENSOR | {"actor_config.backend": "fsdp:d1t2"},
    "archon d1": {"actor_config.backend": "archon:d1"},
    "archon d2": TWO | {"actor_config.backend": "archon:d2"},
    "archon t2": _BY_TENSOR | {"actor_config.backend": "archon:d1t2"},
    "archon e2": TWO | _BY_EXPERT | {"actor_config.backend": "archon:d2e2"},
    "archon t2 e2": _BY_TENSOR
    | _BY_EXPERT
    | {"actor_config.backend": "archon:d1t2e2", "megatron_training.sequence_parallel": True},
    "archon p2, recomputed": _BY_STAGE
    | {"actor_config.backend": "archon:d1p2", "actor_config.archon.ac_mode": "full"},
}

MIXED_WAYS = ("d1", "d2", "t2", "archon d2", "archon e2", "archon t2 e2", "archon p2, recomputed")
"""Ways of mixtures."""
NESTED_WAYS = ("d1", "d2", "t2", "archon d2", "archon t2")
"""Ways of the decoder of a folder with a vision tower."""


def recurrence(weights: Mapping[str, Tensor], given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the outputs of one sequence by the equations of arXiv:2412.06464, in float64."""
    mixed_TC, rate_TH, decay_TH = (each.double() for each in given)
    A_log, dt_bias, w_C4 = (weights[name].double() for name in ("A_log", "dt_bias", "convolution"))
    rows, S_HVK = SIZES.rows, torch.zeros(4, 5, 3, dtype=torch.float64)
    outputs = []
    for t in range(len(mixed_TC)):
        x_C = sum(mixed_TC[t - j] * w_C4[:, 0, 3 - j] for j in range(4) if t >= j)
        q, k, v = silu(torch.as_tensor(x_C)).split([rows.key, rows.key, rows.value])
        # Two value heads share a key head.
        q_HK, k_HK = (each.view(2, 3).repeat_interleave(2, 0) for each in (q, k))
        q_HK, k_HK = (each / (each.square().sum(1, True) + 1e-6).sqrt() for each in (q_HK, k_HK))
        keeps_H = (-A_log.exp() * softplus(decay_TH[t] + dt_bias)).exp()
        beta_H = rate_TH[t].sigmoid()
        S_HVK = S_HVK * keeps_H[:, None, None]
        read_HV = (S_HVK @ k_HK[..., None])[..., 0]
        written_HV = beta_H[:, None] * (v.view(4, 5) - read_HV)
        S_HVK = S_HVK + written_HV[..., None] * k_HK[:, None]
        outputs.append((S_HVK @ q_HK[..., None])[..., 0] / 3**0.5)
    return torch.stack(outputs)


def test_the_engines_float32_layer_follows_the_recurrence_through_prompts_and_sampled_tokens(
    forked_workers: ForkedWorkers,
) -> None:
    draw = torch.Generator().manual_seed(1)
    channels = 2 * SIZES.rows.key + SIZES.rows.value
    weights = {
        "convolution": torch.randn(channels, 1, 4, generator=draw) / 2,
        "A_log": torch.randn(4, generator=draw) / 2 - 1,
        "dt_bias": torch.randn(4, generator=draw),
    }
    whole = {
        slot: tuple(torch.randn(sum(counts), size, generator=draw) for size in (channels, 4, 4))
        for slot, counts in LENGTHS.items()
    }
    steps: list[Step] = []
    taken = dict.fromkeys(LENGTHS, 0)
    expected: list[Tensor] = []
    for number in range(4):
        entered = {slot: number - 4 + len(counts) for slot, counts in LENGTHS.items()}
        new = [
            (LENGTHS[slot][at] > 1 or at == 0, slot, LENGTHS[slot][at], at > 0)
            for slot, at in entered.items()
            if at >= 0
        ]
        new.sort(key=lambda each: each[0])
        parts = []
        for _, slot, count, _ in new:
            span = slice(taken[slot], taken[slot] + count)
            parts.append([each[span] for each in whole[slot]])
            expected.append(recurrence(weights, whole[slot])[span])
            taken[slot] += count
        mixed, rate, decay = (torch.cat(each) for each in zip(*parts, strict=True))
        steps.append(
            Step(
                lengths=[count for _, _, count, _ in new],
                slots=[slot for _, slot, _, _ in new],
                known=[known for *_, known in new],
                decodes=sum(not several for several, *_ in new),
                mixed=mixed,
                rate=rate,
                decay=decay,
            )
        )
    assert [step.decodes for step in steps] == [0, 1, 2, 4]
    (found,) = forked_workers.run("gated_delta_probe:engine_outputs", SIZES, weights, steps)
    # Float32, outputs of size 1.
    torch.testing.assert_close(torch.cat(found).double(), torch.cat(expected), atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("family", "way"),
    at_night_but(
        [("qwen3_5_text", "d1"), ("qwen3_5_text", "archon t2"), ("qwen3_5", "d1")],
        [
            *(("qwen3_5_text", way) for way in WAYS if "e2" not in way),
            *product(("qwen3_next", "qwen3_5_moe_text"), MIXED_WAYS),
            *product(("qwen3_5",), NESTED_WAYS),
            *product(("qwen3_5_moe",), ("d2", "archon e2")),
        ],
    ),
)
def test_five_updates_are_those_of_a_hugging_face_loop_and_the_same_from_a_checkpoint(
    family: str,
    way: str,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    model, rows = random_model_of(family, spread=0.04), tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    given = KEYS | OPTIMIZER | WAYS[way] | {"megatron_training.data_path": str(rows)}
    config, root = run_config(model, given), tmp_path / "run"
    root.mkdir()
    shown = demonstrations(211)
    ours = learned(shown, root, config, forked_workers)
    steps = [sequences_of(shown[at : at + ROWS]) for at in range(0, len(shown), ROWS)]
    for step, (loss, norm) in zip(ours, of_hugging_face(model, steps), strict=True):
        # Sums of float32 in another order: sequences of a pack, two ranks.
        assert step["sft/loss"] == pytest.approx(loss, rel=2e-6)
        assert step["update/grad_norm"] == pytest.approx(norm, rel=2e-6)
    is_the_same_from_step_2(shown, root, config, forked_workers, ours)
