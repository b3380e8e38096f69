"""What the tests of gated delta nets call in a prepared process; see forked_workers.run."""

from types import SimpleNamespace
from typing import Any

import torch
from gated_delta_messages import Sizes, Step
from torch import Tensor

from mindrl.platform.patches.vllm_cpu_gated_delta import advance


def engine_outputs(sizes: Sizes, weights: dict[str, Tensor], steps: list[Step]) -> list[Tensor]:
    """Take requests through a float32 layer of the engine, step by step."""
    rows = sizes.rows
    caches = (
        torch.full((sizes.slots, sizes.convolution - 1, 2 * rows.key + rows.value), torch.nan),
        torch.full((sizes.slots, sizes.value_heads, sizes.value_width, sizes.key_width), torch.nan),
    )
    layer = SimpleNamespace(
        conv1d=SimpleNamespace(weight=weights["convolution"], bias=None),
        A_log=weights["A_log"],
        dt_bias=weights["dt_bias"],
        kv_cache=caches,
        key_dim=rows.key,
        value_dim=rows.value,
        head_k_dim=sizes.key_width,
        head_v_dim=sizes.value_width,
        num_k_heads=sizes.key_heads,
        num_v_heads=sizes.value_heads,
        tp_size=1,
    )
    return [_taken(layer, sizes, step) for step in steps]


def _taken(layer: Any, sizes: Sizes, step: Step) -> Tensor:
    lengths = torch.tensor(step.lengths)
    metadata = SimpleNamespace(
        non_spec_query_start_loc=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        non_spec_state_indices_tensor=torch.tensor(step.slots),
        num_decodes=step.decodes,
        num_prefills=len(step.lengths) - step.decodes,
        has_initial_state=torch.tensor(step.known),
    )
    made = torch.full((int(lengths.sum()), sizes.value_heads, sizes.value_width), torch.nan)
    advance(layer, metadata, (step.mixed, step.rate, step.decay), made)
    return made
