"""What the tests of engines in int8 call in a prepared process; see forked_workers.run."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from int8_messages import Int8Bytes, Int8Life, Rounded
from rollout_probe import sleeping_engine
from shards_probe import _ask
from weight_files import load_backwards, load_one_by_one, rollout_table

from mindrl.checkpoint.any_family import read_any_description
from mindrl.layouts.layout import RolloutLayout
from mindrl.rollout.vllm.engine import VllmEngine
from mindrl.rollout.vllm.sharding import vllm_sharding

Prompts = Sequence[Sequence[int]]


def life_in_int8(folder: str, later: str, tp: int, dtype: str, prompts: Prompts) -> Int8Life:
    """Load an engine, load it again, let it sleep, and load it a third time."""
    layout = RolloutLayout(tp=tp)
    engine = sleeping_engine(
        folder, quantization="int8", infer_tensor_parallel_size=tp, dtype=dtype
    )
    table = rollout_table(folder, layout)
    model = read_any_description(folder, to_plan=True)
    planned = vllm_sharding(model, layout, dtype=dtype, int8=True).held_bytes()[dist.get_rank()]
    engine.onload("weights")
    rounded, answers = {}, {}
    load_one_by_one(engine.weight_sink(), folder, table)
    loaded = engine.device_bytes("weights")
    engine.onload("kv_cache")
    rounded["first"], answers["first"] = numbers_of(engine), _ask(engine.llm, prompts)
    load_backwards(engine.weight_sink(), later, table)
    engine.forget()
    rounded["later"], answers["later"] = numbers_of(engine), _ask(engine.llm, prompts)
    engine.offload()
    asleep = engine.device_bytes("weights")
    engine.onload("weights")
    awake = engine.device_bytes("weights")
    load_backwards(engine.weight_sink(), folder, table)
    engine.onload("kv_cache")
    rounded["after a sleep"], answers["after a sleep"] = (
        numbers_of(engine),
        _ask(engine.llm, prompts),
    )
    return Int8Life(
        rounded=rounded,
        answers=answers,
        whole={
            name: str(tensor.dtype).removeprefix("torch.")
            for name, tensor in model_of(engine).named_parameters()
            if not name.endswith("_scale")
        },
        bytes=Int8Bytes(
            planned=planned,
            reported=engine.nbytes("weights"),
            loaded=loaded,
            asleep=asleep,
            awake=awake,
        ),
    )


def model_of(engine: VllmEngine) -> torch.nn.Module:
    return engine.llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()


def numbers_of(engine: VllmEngine) -> dict[str, Rounded]:
    """Read the matrices back from products with unit inputs: they exist packed only.

    A unit input is rounded to 127 with the scale 1 / 127, so that a product is a number times its
    scale, to a few units in the last place of the engine's dtype.
    """
    found = {}
    for path, module in model_of(engine).named_modules():
        if hasattr(module, "scheme"):
            units = torch.eye(module.input_size_per_partition, dtype=module.params_dtype)
            scale_N1 = module.weight_scale.data.clone()
            product_NK = module.scheme.apply_weights(module, units, None).float().T
            numbers_NK = (product_NK / scale_N1).round().clamp(-128, 127)
            found[f"{path}.weight"] = numbers_NK.to(torch.int8), scale_N1
    return found
