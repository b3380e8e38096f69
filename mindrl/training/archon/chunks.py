"""Build a rank's part of a model: the networks of its chunks and what they share."""

from collections.abc import Callable

from mindrl.models.description import ModelDescription
from mindrl.training.archon.adapters import put_adapters
from mindrl.training.archon.balance import Balance
from mindrl.training.archon.meshes import Meshes, expert_meshes_of
from mindrl.training.archon.network import Network, NetworkSettings, StagePart
from mindrl.training.archon.recompute import prepare_layers
from mindrl.training.archon.shards import shard
from mindrl.training.archon.tensor import TensorParallel
from mindrl.training.settings import EngineSettings


def chunks_of_rank(
    model: ModelDescription,
    settings: EngineSettings,
    meshes: Meshes,
    stage: int,
    network_of: Callable[[StagePart, NetworkSettings], Network],
) -> dict[int, Network]:
    """Return the chunks of a stage, by their number in the model. A collective over all ranks."""
    layout, parallel = settings.layout, _tensor_parallel(model, settings, meshes)
    network_settings = NetworkSettings(
        parallel=parallel,
        context=meshes.context_groups,
        attention=settings.attention,
        head=settings.head,
        experts=expert_meshes_of(layout, settings.device_type) if model.moe else None,
        balance=_balance(model, settings, meshes, parallel),
    )
    chunks, networks = layout.chunks(model.num_hidden_layers), {}
    for chunk in layout.chunks_of(stage):
        part = StagePart(chunks[chunk], is_first=chunk == 0, is_last=chunk == len(chunks) - 1)
        networks[chunk] = network_of(part, network_settings)
        if settings.low_rank is not None:
            put_adapters(networks[chunk], model, settings.low_rank)
        prepare_layers(networks[chunk], settings.learning.archon)
        shard(
            networks[chunk],
            meshes.data,
            settings.device_type,
            bf16=settings.training.bf16,
            stays=layout.pp > 1,
        )
    return networks


def _tensor_parallel(
    model: ModelDescription, settings: EngineSettings, meshes: Meshes
) -> TensorParallel:
    is_wanted = settings.training.sequence_parallel or model.is_routed_by_own_tokens
    return TensorParallel(
        mesh=meshes.tensor,
        sequence=settings.layout.tp > 1 and is_wanted,
        twins=meshes.twins(model.num_key_value_heads),
    )


def _balance(
    model: ModelDescription, settings: EngineSettings, meshes: Meshes, parallel: TensorParallel
) -> Balance | None:
    if model.moe is None or not settings.learning.moe_aux_loss_coeff:
        return None
    return Balance(
        moe=model.moe,
        learning=settings.learning,
        parallel=parallel,
        context=meshes.context,
        tokens=meshes.tokens(),
        replicas=settings.layout.dp,
    )
