"""Measure the memory that PyTorch's engine keeps for the backward pass, and the time of a step.

    python scripts/bench_recompute.py [--layers 6] [--tokens 2048] [--modes none full ...]

One process, a dense decoder in float32 with random weights, one pack of four sequences. Prints for
each mode of `actor_config.archon`: the peak that forward and backward pass add to the process's
memory, the seconds of a first step of 128 tokens, including compilation, the median of all steps,
and the difference of the loss from that of `none`.
"""

import argparse
import os
import resource
import time
from collections.abc import Mapping
from statistics import median
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table

from mindrl.batch.sequences import Sequences
from mindrl.config.archon import ArchonConfig
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.role import LearningConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.models.adapters import LowRank
from mindrl.models.description import ModelDescription
from mindrl.platform.attention import attention_kernel
from mindrl.platform.rendezvous import listen
from mindrl.training.archon.chunks import chunks_of_rank
from mindrl.training.archon.meshes import meshes_of
from mindrl.training.archon.network import Network
from mindrl.training.archon.shards import give_back
from mindrl.training.archon.tensor import local
from mindrl.training.packs import Pack, PackRules
from mindrl.training.settings import EngineSettings

MODES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "none": {},
        "selective op": {"ac_mode": "selective"},
        "selective 2": {"ac_mode": "selective", "selective_ac_option": "2"},
        "full": {"ac_mode": "full"},
        "compiled": {"enable_compile": True},
        "memory_budget 0.5": {"enable_compile": True, "ac_mode": "memory_budget"},
    }
)
STEPS = 4


def description(layers: int) -> ModelDescription:
    """Return a model with large activations."""
    return ModelDescription(
        model_type="qwen2",
        num_hidden_layers=layers,
        hidden_size=256,
        intermediate_size=768,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        vocab_size=96,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        attention_bias=True,
    )


def pack_of(tokens: int) -> Pack[Sequences]:
    """Return four sequences of different lengths."""
    lengths_B = torch.tensor([tokens // 8, tokens // 4, tokens // 8, tokens // 2])
    shape = len(lengths_B), int(lengths_B.max())
    asked_BT = torch.arange(shape[1]) < lengths_B[:, None]
    asked_BT[:, 0] = False
    generator = torch.Generator().manual_seed(1)
    source = Sequences(
        tokens_BT=torch.randint(0, 96, shape, generator=generator),
        lengths_B=lengths_B,
        response_mask_BT=asked_BT,
    )
    rules = PackRules(
        removes_padding=True, cp=1, cp_rank=0, ring=1, tokens_multiple=1, device_type="cpu"
    )
    return Pack.of(source, rules)


def network_of(
    model: ModelDescription,
    options: Mapping[str, Any],
    tokens: int,
    *,
    dp: int = 1,
    bf16: bool = False,
    low_rank: LowRank | None = None,
) -> Network:
    """Create a model with random weights over a number of ranks."""
    layout = TrainLayout(dp=dp)
    settings = EngineSettings(
        layout=layout,
        training=MegatronTrainingConfig(
            train_iters=1, global_batch_size=1, seq_length=tokens, data_path="none", bf16=bf16
        ),
        learning=LearningConfig(archon=ArchonConfig(**options)),
        device_type="cpu",
        attention=attention_kernel("cpu"),
        low_rank=low_rank,
    )
    made = chunks_of_rank(
        model, settings, meshes_of(layout, "cpu"), 0, lambda part, more: Network(model, part, more)
    )
    torch.manual_seed(0)
    for parameter in made[0].parameters():
        torch.nn.init.normal_(local(parameter.data.to_local()), std=0.05)
    return made[0]


def measure(
    _: int, options: Mapping[str, Any], layers: int, tokens: int, port: int, shown: Any
) -> None:
    """Run the steps of one mode in a separate process."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=0, world_size=1)
    network = network_of(description(layers), options, tokens)
    # Includes compilation, if the mode compiles.
    start = time.perf_counter()
    step(network, pack_of(128))
    first = time.perf_counter() - start
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pack, seconds, losses = pack_of(tokens), [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        losses.append(step(network, pack))
        seconds.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shown.update(mib=(after - before) / 1024, first=first, later=median(seconds), loss=losses[0])
    dist.destroy_process_group()


def step(network: Network, pack: Pack[Sequences]) -> float:
    """Run forward and backward pass without an update."""
    hidden_1SH = network(pack.tokens_1S, pack)
    loss = (hidden_1SH @ network.head_weight().T).logsumexp(-1).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    give_back(network)
    network.zero_grad()
    return float(loss.detach())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    asked = parser.parse_args()
    table = Table("mode", "MiB more", "first step, s", "a step, s", "loss, difference")
    plain: float | None = None
    for mode in asked.modes:
        with listen("127.0.0.1") as free:
            port = free.getsockname()[1]
        with mp.Manager() as manager:
            shown = manager.dict()
            mp.spawn(measure, (MODES[mode], asked.layers, asked.tokens, port, shown))
            found = dict(shown)
        plain = found["loss"] if plain is None else plain
        seconds = f"{found['first']:.2f}", f"{found['later']:.2f}"
        table.add_row(mode, f"{found['mib']:.0f}", *seconds, f"{abs(found['loss'] - plain):.1e}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
