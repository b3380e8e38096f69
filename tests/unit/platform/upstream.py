"""Run third-party code as published, without a patch, and print the result.

Started by test_patches.py in a process of its own: here nothing is patched until the end, and
the heavy imports happen once. Prints one JSON object.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from itertools import permutations
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import vllm.v1.engine.core as engine_core
from megatron.core import parallel_state
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.moe import grouped_gemm_util, moe_utils
from ray._private import node, services, worker
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from vllm import _custom_ops as engine
from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed
from vllm.model_executor.kernels.linear.scaled_mm import cpu as int8_kernel
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig
from vllm.model_executor.layers.fused_moe.experts import cpu_moe
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.triton_utils import dispatcher
from vllm.utils import cpu_triton_utils
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata
from vllm.v1.worker.cpu_worker import CPUWorker

from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.role import LearningConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import read_description
from mindrl.platform.attention import Packing, attention_kernel, torch_attention
from mindrl.platform.engine_operators import engine_attention
from mindrl.platform.patches import (
    ray_on_loopback,
    vllm_cpu_drafts,
    vllm_cpu_experts,
    vllm_cpu_int8,
    vllm_cpu_kernels,
    vllm_cpu_token_attention,
    vllm_keeps_process_groups,
)
from mindrl.training.megatron.engine import MegatronEngine
from mindrl.training.megatron.model import ModelSettings
from mindrl.training.megatron.parallel import initialise_model_parallel
from mindrl.training.megatron.sharding import megatron_sharding
from mindrl.training.megatron.training_state import TrainingState

HOLDERS = ("vllm.probe", "elsewhere")
"""Modules, one of vLLM's and one of another library."""


def join_alone() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def error_of(action: Callable[[], Any]) -> str | None:
    """Return the last line of what an action raises, None where it succeeds."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller is to see it
        return f"{type(error).__name__}: {error}"
    return None


def megatron_on_cpu(folder: str) -> dict[str, str | None]:
    """Try on CPU, one by one, what a run needs of Megatron-core."""

    def make_groups() -> None:
        initialise_model_parallel(TrainLayout(), seed=1, timeout_minutes=10)

    errors = {"process groups": error_of(make_groups)}
    settings = ModelSettings(
        layout=TrainLayout(),
        # Made as far as it goes, and in place.
        groups=SimpleNamespace(active=nullcontext, context=None),
        training=MegatronTrainingConfig(
            train_iters=1, global_batch_size=1, seq_length=64, data_path="unused.jsonl", bf16=False
        ),
        learning=LearningConfig(),
        device_type="cpu",
        attention=attention_kernel("cpu"),
    )
    description = read_description(folder)
    sharding = megatron_sharding(description, TrainLayout(), dtype="float32")
    model = MegatronEngine(folder, settings, (description, sharding))
    tokens_BT = torch.arange(8)[None]
    pack = SimpleNamespace(
        positions=None, qkv_format="thd", cp_group=None, max_seqlen_q=8, max_seqlen_kv=8
    )
    errors["forward pass"] = error_of(
        lambda: model.chunks[0](tokens_BT, tokens_BT, None, packed_seq_params=pack)
    )
    errors["gradients"] = error_of(
        lambda: TrainingState(model.chunks, model.config, settings, updates=1)
    )
    return errors


def order_strings_that_give(groups: list[list[int]]) -> list[str]:
    """Try all of Megatron's orders of tensor 2 and data 4 for these tensor-parallel groups."""
    sizes = {"tp": 2, "ep": 1, "dp": 4, "pp": 1, "cp": 1}
    orders = ["-".join(names) for names in permutations(sizes)]
    return [
        order
        for order in orders
        if parallel_state.RankGenerator(**sizes, order=order).get_ranks("tp") == groups
    ]


def uneven_gather() -> list[str | None]:
    """Gather one element and two over gloo, without Megatron; returns both ranks' errors."""
    store = HashStore()

    def gather(rank: int) -> str | None:
        group = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=20))
        parts = [torch.empty(1), torch.empty(2)]
        return error_of(lambda: group.allgather([parts], [torch.ones(rank + 1)]).wait())

    with ThreadPoolExecutor(max_workers=2) as ranks:
        return list(ranks.map(gather, range(2)))


def shared_memory_name(init_method: str) -> str:
    """Return the name of a two-rank group, with the identity that CPUWorker derives."""
    os.environ["VLLM_DIST_IDENT"] = init_method.rsplit(":", maxsplit=1)[-1]
    group = SimpleNamespace(unique_name="tp:0", ranks=[0, 1])
    name: str = _CPUSHMDistributed.make_group_name(group)
    return name


def groups_survive_clean_up() -> bool:
    """Say whether the default process group outlives what an engine does at its end."""
    engine_core.cleanup_dist_env_and_memory()
    survived = dist.is_initialized()
    if not survived:
        join_alone()
    return survived


def kernel_is_replaced(name: str) -> bool:
    """Say whether a kernel is replaced in a module of that name, which holds it too."""
    kernel, other = object(), object()
    sys.modules[name] = module = ModuleType(name)
    module.held = kernel  # type: ignore[attr-defined]
    try:
        dispatcher._rebind_kernels([(kernel, other)])
    finally:
        del sys.modules[name]
    return module.held is other


def loopback_becomes() -> str:
    """Say what Ray makes of 127.0.0.1 on a machine whose own address is 192.0.2.7."""
    own_address = services.get_node_ip_address
    services.get_node_ip_address = lambda *_: "192.0.2.7"
    try:
        address: str = services.resolve_ip_for_localhost("127.0.0.1")
    finally:
        services.get_node_ip_address = own_address
    return address


def answer_of_experts_that_are_elsewhere() -> float:
    """Return what 2 of 4 experts make of a token that chose the other two.

    The numbers of those two are within this rank's own, so that the kernel reads no memory but
    that of the weights.
    """
    config, layer = FusedMoEQuantConfig.make(), torch.nn.Module()
    for name, shape in (("w13_weight", (2, 64, 32)), ("w2_weight", (2, 32, 32))):
        packed = cpu_moe.cpu_prepack_moe_weight(torch.ones(shape), "vec")
        layer.register_parameter(name, torch.nn.Parameter(packed, requires_grad=False))
    experts = object.__new__(cpu_moe.CPUUnquantizedExperts)
    experts.quant_config, experts._use_zentorch = config, False
    output = torch.zeros(1, 32)
    experts.apply(
        output=output,
        hidden_states=torch.ones(1, 32),
        w1=layer.w13_weight,
        w2=layer.w2_weight,
        topk_weights=torch.full((1, 2), 0.5),
        topk_ids=torch.tensor([[0, 1]], dtype=torch.int32),
        activation=MoEActivation.SILU,
        global_num_experts=4,
        expert_map=torch.tensor([-1, -1, 0, 1], dtype=torch.int32),
        a1q_scale=None,
        a2_scale=None,
        workspace13=torch.empty(0),
        workspace2=torch.empty(0),
        expert_tokens_meta=None,
        apply_router_weight_on_input=False,
    )
    return output.abs().max().item()


def gated_delta_net_in_float32() -> str | None:
    """Run a layer for one token, in a data type that it refuses before it reads anything else."""
    metadata = object.__new__(GDNAttentionMetadata)
    metadata.num_actual_tokens = 1
    layers = {"layer": SimpleNamespace(prefix="layer")}
    context = SimpleNamespace(no_compile_layers=layers, attn_metadata={"layer": metadata})
    find, one = gdn_attention.get_forward_context, torch.zeros(1, 1)
    gdn_attention.get_forward_context = lambda: context
    try:
        return error_of(lambda: gdn_attention.cpu_gdn_attention_core(one, one, one, one, "layer"))
    finally:
        gdn_attention.get_forward_context = find


def prompt_by_engine(heads: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Attend with the engine's kernel, all tokens as one prompt."""
    query, key, value = heads
    tokens, width = len(query), query.size(-1)
    cache = query.new_zeros(-(-tokens // 32), key.size(1), 64, width)
    keys, values = cache.chunk(2, dim=2)
    engine.cpu_attn_reshape_and_cache(key, value, keys, values, torch.arange(tokens), "vec")
    starts = torch.tensor([0, tokens], dtype=torch.int32)
    sizes = (1, query.size(1), key.size(1), width, starts[1:], torch.float32, starts, True, -1)
    plan = engine.cpu_attn_get_scheduler_metadata(*sizes, "vec", False)
    mixed, blocks = torch.empty_like(query), torch.arange(len(cache), dtype=torch.int32)[None]
    same = (query, keys, values, mixed, starts, starts[1:], width**-0.5, True, None, -1, blocks)
    engine.cpu_attention_with_kv_cache(*same, 0.0, plan, None)
    return mixed


def attention_by_token() -> dict[str, float]:
    """Compare the last token of a long prompt, and the attention that trainers use, by its size."""
    draw = torch.Generator().manual_seed(1)
    heads = tuple(torch.randn(900, each, 64, generator=draw) for each in (4, 2, 2))
    # Processors with larger caches cut shorter prompts as they cut a single token.
    longer = tuple(torch.randn(4000, each, 64, generator=draw) for each in (4, 2, 2))
    whole = prompt_by_engine(longer)
    starts = (0, 500, 900)
    packing = Packing(starts=starts, longest=500, cumulative=torch.tensor(starts).int())
    leaves = [each.clone().requires_grad_() for each in heads]
    pack = engine_attention(*leaves, packing, None)
    alone = torch.cat(
        [
            engine_attention(*(each[a:b] for each in heads), _one(b - a), None)
            for a, b in ((0, 500), (500, 900))
        ]
    )
    usual = torch_attention(*leaves, packing, None)
    gradients = (torch.autograd.grad(each.sum(), leaves) for each in (pack, usual))
    pairs = zip(*gradients, strict=True)
    return {
        "token in a prompt": _apart(whole[-1:], engine_attention(*longer, _one(4000), None)[-1:]),
        "sequence in a pack": _apart(pack, alone),
        "torch's kernel": _apart(pack, usual),
        "gradients": max(_apart(ours, theirs) for ours, theirs in pairs),
    }


def requests_by_token() -> dict[str, list[int]]:
    """Cut a request of 3 new tokens behind 4 others, and one of a single token."""
    common = CommonAttentionMetadata(
        query_start_loc=torch.tensor([0, 3, 4]),
        query_start_loc_cpu=torch.tensor([0, 3, 4]),
        seq_lens=torch.tensor([7, 9]),
        num_reqs=2,
        num_actual_tokens=4,
        max_query_len=3,
        max_seq_len=9,
        block_table_tensor=torch.tensor([[5], [6]]),
        slot_mapping=torch.arange(4),
    )
    cut = vllm_cpu_token_attention.by_token(common)
    return {
        "starts": cut.query_start_loc.tolist(),
        "seen": cut.seq_lens.tolist(),
        "blocks": cut.block_table_tensor.flatten().tolist(),
    }


def repeated_for_drafts() -> dict[str, list[float]]:
    """Repeat the temperatures of two requests for 2 and 1 drafted tokens, greedy ones as 1."""
    values_B, ends_B = torch.tensor([0.5, 0.0]), torch.tensor([2, 3], dtype=torch.int32)
    vllms = torch.full((3,), 7.0)
    cpu_triton_utils._expand_kernel_impl(vllms, values_B, ends_B, 0, 1)
    ours = vllm_cpu_drafts.repeated(values_B, ends_B, 3, 0, 1)
    return {"vllm": vllms.tolist(), "ours": ours.tolist()}


def packed_for_a_bfloat16_layer() -> dict[str, object]:
    """Pack an int8 matrix of a bfloat16 layer; return the dtype that its outputs get, and its sums.

    As when trained weights arrive, torch's default dtype is float32.
    """
    asked: list[torch.dtype] = []
    create = int8_kernel.ops.create_onednn_scaled_mm
    layer = torch.nn.Module()
    layer.params_dtype, layer.logical_widths = torch.bfloat16, [24]
    layer.register_parameter("azp_adj", None)
    layer.register_parameter("input_scale", None)
    # A processor with AMX would pack a matrix of 32 rows for another kernel.
    numbers_NK, scale_N1 = torch.ones(24, 24, dtype=torch.int8), torch.ones(24, 1)
    for name, values in (("weight", numbers_NK), ("weight_scale", scale_N1)):
        layer.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))
    names = ("weight", "weight_scale", "input_scale", "input_zero_point", "azp_adj")
    config = int8_kernel.Int8ScaledMMLinearLayerConfig(
        is_static_input_scheme=False, is_channelwise=True, input_symmetric=True
    )

    def recorded(*arguments: Any) -> Any:
        asked.append(arguments[2])
        return create(*arguments)

    int8_kernel.ops.create_onednn_scaled_mm = recorded
    try:
        int8_kernel.CPUInt8ScaledMMLinearKernel(config, names).process_weights_after_loading(layer)
    finally:
        int8_kernel.ops.create_onednn_scaled_mm = create
    return {"outputs": str(asked[0]), "sums": layer.azp_adj is not None}


def _one(tokens: int) -> Packing:
    return Packing(starts=(0, tokens), longest=tokens, cumulative=torch.tensor([0, tokens]).int())


def _apart(left: Tensor, right: Tensor) -> float:
    return (left - right).abs().max().item()


def facts(folder: str) -> dict[str, object]:
    """Collect everything; the patches come last."""
    join_alone()
    bare_worker = object.__new__(CPUWorker)
    found: dict[str, object] = {
        "megatron_on_cpu": megatron_on_cpu(folder),
        "orders_of_neighbours": order_strings_that_give([[0, 1], [2, 3], [4, 5], [6, 7]]),
        "orders_of_split_data": order_strings_that_give([[0, 2], [1, 3], [4, 6], [5, 7]]),
        "router_names_te_general_gemm": hasattr(moe_utils, "te_general_gemm"),
        "latent_attention_has_te": multi_latent_attention.HAVE_TE,
        "latent_attention_has_layers_of_te": isinstance(multi_latent_attention.TELinear, type),
        "grouped_product_is_there": grouped_gemm_util.grouped_gemm_is_available(),
        "uneven_gather": uneven_gather(),
        "shutdown_names": engine_core.EngineCore.shutdown.__code__.co_names,
        "groups_survive_clean_up": groups_survive_clean_up(),
        "shared_memory_name": shared_memory_name("env://"),
        "sleep_of_a_bare_worker": error_of(lambda: CPUWorker.sleep(bare_worker, 2)),
        "wake_up_of_a_bare_worker": error_of(lambda: CPUWorker.wake_up(bare_worker)),
        "answer_of_experts_that_are_elsewhere": answer_of_experts_that_are_elsewhere(),
        "gated_delta_net_in_float32": gated_delta_net_in_float32(),
        "attention_by_token": attention_by_token(),
        "requests_by_token": requests_by_token(),
        "repeated_for_drafts": repeated_for_drafts(),
        "packed_for_a_bfloat16_layer": packed_for_a_bfloat16_layer(),
        "init_names": inspect.unwrap(worker.init).__code__.co_names,
        "loopback_becomes": loopback_becomes(),
        "node_names": [*node.Node.__init__.__code__.co_names],
        "head_names": [*node.Node.start_head_processes.__code__.co_names],
        "ray_names": [*node.Node.start_ray_processes.__code__.co_names],
        "kernel_is_replaced": {name: kernel_is_replaced(name) for name in HOLDERS},
    }
    vllm_keeps_process_groups.install()
    ray_on_loopback.install()
    vllm_cpu_experts.install()
    vllm_cpu_kernels.install()
    vllm_cpu_int8.install()
    found["patched_for_a_bfloat16_layer"] = packed_for_a_bfloat16_layer()
    replaced = {name: kernel_is_replaced(name) for name in HOLDERS}
    found["patched_kernel_is_replaced"] = replaced
    found["patched_groups_survive_clean_up"] = groups_survive_clean_up()
    found["patched_loopback_becomes"] = loopback_becomes()
    patched = answer_of_experts_that_are_elsewhere()
    found["patched_answer_of_experts_that_are_elsewhere"] = patched
    return found


if __name__ == "__main__":
    print(json.dumps(facts(sys.argv[1])))
    sys.stdout.flush()
    # The engine's libraries stop their threads at exit, which takes seconds.
    os._exit(0)
