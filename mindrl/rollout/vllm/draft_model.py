"""A model that drafts for the engine: its weights come from a folder and never change.

vLLM starts it with dummy weights, as the policy's: `draft_load_config` has no effect on it (0.32).
"""

from contextlib import ExitStack
from typing import Any

from torch.nn import Module
from vllm.distributed import get_tp_group

from mindrl.checkpoint.readers import fill, folder_reader
from mindrl.config.generate import GenerateConfig
from mindrl.layouts.layout import RolloutLayout
from mindrl.models.description import read_description
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.rollout.vllm.shards import EngineShards


def loaded_draft(worker: Any, generate: GenerateConfig) -> tuple[Module | None, int]:
    """Load this rank's weights of the model that drafts, and return it with their bytes.

    None and 0 if no model drafts.

    Raises:
        ModelError: A file or tensor is missing, unreadable or of another shape.
    """
    folder = generate.speculative_config.model
    if folder is None:
        return None, 0
    draft: Module = worker.model_runner.drafter.model
    layout = RolloutLayout(tp=generate.infer_tensor_parallel_size)
    sharding = vllm_sharding(read_description(folder), layout, dtype=generate.dtype)
    shards = EngineShards(worker, draft)
    with ExitStack() as stack:
        read = folder_reader(folder, stack)
        for name, entry in sharding.table(get_tp_group().rank_in_group).items():
            fill(shards.open(name), entry, read)
            shards.close(name)
    shards.finish()
    return draft, shards.nbytes()
