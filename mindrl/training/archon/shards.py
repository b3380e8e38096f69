"""FSDP2: each rank of a group keeps some rows of every weight and gathers the others to compute."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from mindrl.training.archon.network import Network


def shard(network: Network, mesh: DeviceMesh, device_type: str, *, bf16: bool, stays: bool) -> None:
    """Cut the weights of a network over the ranks of a mesh, and allocate this rank's part.

    Experts are cut over the ranks that have the same ones. A collective over the mesh, and over the
    experts' meshes.

    Weights and gradients are float32; with `bf16` gathered weights, and computation, are bfloat16.
    Gradients are sums, which every backend supports, not means: a loss is a weighted sum. With
    `stays` gathered weights are freed after the update instead of after each forward pass.
    """
    numbers = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None,
        reduce_dtype=torch.float32,
        # Hidden states already have the weights' dtype, and angles keep theirs.
        cast_forward_inputs=False,
    )
    cut = partial(fully_shard, mp_policy=numbers, reshard_after_forward=not stays)
    apart = [*network.experts_apart()]
    for experts, ranks, _ in apart:
        cut(experts, mesh=ranks)
    for layer in network.layers:
        cut(layer, mesh=mesh)
    # The head's weight is read after the forward pass.
    fully_shard(network, mesh=mesh, mp_policy=numbers, reshard_after_forward=False)
    for module in sharded(network):
        # Otherwise FSDP2 uses a reduction that gloo and HCCL do not have.
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    for experts, _, readers in apart:
        experts.set_gradient_divide_factor(float(readers))
    network.to_empty(device=device_type)
    # Weights get their final storage at the first gather.
    for module in sharded(network):
        module.unshard()
    give_back(network)


def give_back(network: nn.Module) -> None:
    """Free the gathered weights.

    After a pass without a backward pass the root would keep them, and the next pass would use these
    weights from before the step.
    """
    for module in sharded(network):
        module.reshard()


def sharded(network: nn.Module) -> Iterator[FSDPModule]:
    """Yield the modules that FSDP2 shards."""
    yield from (module for module in network.modules() if isinstance(module, FSDPModule))
