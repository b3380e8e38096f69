"""The loss that keeps experts equally busy, as Megatron counted it while it ran."""

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker


def taken_balance_loss(*, micro_batches: int, layers: int, device_type: str) -> float:
    """Return the mean over layers, micro-batches and replicas, and start anew.

    1 means that the tokens are dealt evenly. A collective over all ranks.

    Args:
        micro_batches: Of this rank.
        layers: Layers with experts, over all stages.
        device_type: Where collectives run.
    """
    # A stage without experts has counted nothing.
    tracker = get_moe_layer_wise_logging_tracker()
    counted = tracker.get("load_balancing_loss")
    total = torch.zeros((), device=device_type)
    if counted is not None:
        total += counted["values"].sum() / micro_batches
    # Each rank has the part of its own tokens and of the layers of its stage.
    dist.all_reduce(total)
    # Emptied, not set to zero: the next model to count may have another number of layers.
    tracker.clear()
    replicas: int = parallel_state.get_data_parallel_world_size()
    return float(total) / (replicas * layers)
