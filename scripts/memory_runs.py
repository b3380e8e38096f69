"""The worker of scripts/bench_memory.py and its steps. Imported only in a prepared process.

Shapes: B sequences of a step, T positions.
"""

import ctypes
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from memory_rivals import HABITS, Clocked, Ways, copied_region
from safetensors.torch import save_file

from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.batch.experience import CriticMinibatch, Minibatch
from mindrl.batch.rollouts import Rollouts
from mindrl.batch.sequences import Sequences
from mindrl.config.generate import SamplingConfig
from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.launch.worker import build_worker
from mindrl.memory.schedule import Region
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import read_description
from mindrl.platform.device import PLATFORMS
from mindrl.platform.rendezvous import Seat, join_process_group, listen
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.rollout.engine import Sampling
from mindrl.workers.actor_hybrid_worker import ActorHybridWorker

Numbers = dict[str, float]

PROMPTS, SAMPLES, PROMPT_TOKENS, RESPONSE_TOKENS = 2, 2, 8, 8
"""Few and short: the measured time is between the calls."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes of a model."""

    layers: int
    hidden: int
    vocabulary: int
    kv_cache_mib: int


SIZES = {
    # 57 million weights in the layers, 13 million in embedding and head.
    False: Size(layers=6, hidden=768, vocabulary=8192, kv_cache_mib=256),
    True: Size(layers=2, hidden=128, vocabulary=512, kv_cache_mib=16),
}
"""By whether quick."""


def write_model(folder: str, size: Size) -> None:
    """Write a folder of random weights."""
    config = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "num_hidden_layers": size.layers,
        "hidden_size": size.hidden,
        "intermediate_size": 4 * size.hidden,
        "num_attention_heads": size.hidden // 64,
        "num_key_value_heads": size.hidden // 64,
        "vocab_size": size.vocabulary,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1024,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
    generator = torch.Generator().manual_seed(3)
    weights = {
        name: torch.randn(shape, generator=generator) * 0.02 + ("norm" in name)
        for name, shape in logical_shapes(read_description(folder)).items()
    }
    save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})


def run_config(folder: str, algorithm: str, size: Size) -> RunConfig:
    """Return the configuration of a run on one device with all offloading."""
    values: dict[str, dict[str, Any]] = {
        "megatron_training": {
            "train_iters": 1000,
            "global_batch_size": PROMPTS,
            "seq_length": 64,
            "data_path": "unused.jsonl",
            "bf16": False,
        },
        "actor_config": {"load": folder, "micro_batch_size": PROMPTS * SAMPLES, "lr": 1e-5},
        "rl_config": {
            "device": "cpu",
            "actor_resource": {"num_npus": 1},
            "n_samples_per_prompt": SAMPLES,
            "mini_batch_size": PROMPTS,
            "max_prompt_length": PROMPT_TOKENS,
            "init_kl_coef": 0.001,
            # Each step of `Course` computes them in a separate pass, which the plan must count.
            "old_log_probs": "recompute",
        },
        "generate_config": {
            "dtype": "float32",
            "max_model_len": 64,
            "kv_cache_mib": size.kv_cache_mib,
            "sampling_config": {"max_tokens": RESPONSE_TOKENS},
        },
    }
    if algorithm == "ppo":
        values["rl_config"]["adv_estimator"] = "gae"
        values["critic_config"] = {"lr": 1e-5}
    return load_run_config(values)


def join() -> None:
    """Create the default process group with this process alone."""
    torch.set_num_threads(1)
    seat, listener = Seat(rank=0, world_size=1, local_device=0), listen("127.0.0.1")
    address = ("127.0.0.1", listener.getsockname()[1])
    minutes = timedelta(minutes=5)
    join_process_group(PLATFORMS["cpu"], seat, address, timeout=minutes, listener=listener)


class Course:
    """The steps of a training, on random prompts."""

    def __init__(self, worker: ActorHybridWorker, size: Size) -> None:
        """Store the worker that all managers share."""
        self.worker = worker
        self.vocabulary = size.vocabulary
        self.draw = random.Random(5)
        self.generator = torch.Generator().manual_seed(6)

    def step(self, manager: Clocked) -> None:
        """Roll out, score and train; notify the manager when the calls of a role are finished."""
        rollouts = self._rollouts()
        manager.leave()
        sequences, mask_BT = rollouts.sequences(), rollouts.response_mask_BT
        reference = self.worker.compute_ref_log_prob(sequences)
        manager.leave()
        scored = self.worker.compute_log_prob(sequences)
        manager.leave()
        assert reference is not None, "one rank has the last stage"
        assert scored is not None, "the same"
        # Weights of another step, or unwritten memory, would give a gap near 1.
        gap_BT = (scored.logprobs_BT - rollouts.rollout_logprobs_BT) * mask_BT
        assert gap_BT.abs().max() < 1e-4, gap_BT
        if "critic" in self.worker.models:
            self._learn_values(sequences, manager)
        noise_BT = torch.randn(mask_BT.shape, generator=self.generator) * mask_BT
        self.worker.update(
            Minibatch(
                tokens_BT=sequences.tokens_BT,
                lengths_B=sequences.lengths_B,
                response_mask_BT=mask_BT,
                old_logprobs_BT=scored.logprobs_BT,
                advantages_BT=noise_BT,
                token_weights_BT=token_mean_weights(mask_BT),
                ref_logprobs_BT=reference.logprobs_BT,
            )
        )
        manager.leave()

    def _learn_values(self, sequences: Sequences, manager: Clocked) -> None:
        values = self.worker.compute_values(sequences)
        manager.leave()
        assert values is not None, "one rank has the last stage"
        mask_BT = sequences.response_mask_BT
        self.worker.update_critic(
            CriticMinibatch(
                tokens_BT=sequences.tokens_BT,
                lengths_B=sequences.lengths_B,
                response_mask_BT=mask_BT,
                old_values_BT=values.values_BT,
                returns_BT=torch.randn(mask_BT.shape, generator=self.generator) * mask_BT,
                token_weights_BT=token_mean_weights(mask_BT),
            )
        )
        manager.leave()

    def _rollouts(self) -> Rollouts:
        prompts = [
            [self.draw.randrange(self.vocabulary) for _ in range(PROMPT_TOKENS)]
            for _ in range(PROMPTS)
        ]
        repeated = [prompt for prompt in prompts for _ in range(SAMPLES)]
        sampling = Sampling(
            section=SamplingConfig(temperature=1.0, max_tokens=RESPONSE_TOKENS), stop_token_ids=()
        )
        seeds = [self.draw.getrandbits(60) for _ in repeated]
        responses = self.worker.generate_sequences(repeated, sampling, seeds)
        group = [index // SAMPLES for index in range(len(repeated))]
        return Rollouts.from_responses(prompts, responses, group)


def measure(algorithm: str, folder: str, *, quick: bool, repeats: int) -> dict[str, Any]:
    """Run the steps of an algorithm with each manager in turn; return medians and the plan.

    Needs the default process group.
    """
    size = SIZES[quick]
    write_model(folder, size)
    config = run_config(folder, algorithm, size)
    worker = build_worker(unordered_shardings(config).ordered.plan, PLATFORMS["cpu"])
    ways, course = Ways(worker), Course(worker, size)
    found: dict[str, list[Numbers]] = {name: [] for name in ways.names}
    for name in ways.names * repeats:
        manager = ways.take(name)
        # The state of the device between two steps is part of the method.
        course.step(manager)
        manager.flush_metrics()
        course.step(manager)
        found[name].append(manager.flush_metrics() | {"host": float(manager.host_bytes)})
    plan = worker.memory_plan()
    to_host, to_device = (int(counts[0]) for counts in plan.copied_bytes)
    copied = (Region.ACTOR_WEIGHTS, Region.ACTOR_OPTIMIZER)
    return {
        "ways": {name: medians(runs) for name, runs in found.items()},
        "least_bytes": {"to_host": to_host, "to_device": to_device},
        "need_bytes": plan.need_bytes(0),
        "all_bytes": sum(int(counts[0]) for counts in plan.regions.values()),
        "copies": {region.value: bandwidth(ways, region, repeats) for region in copied},
    }


def medians(runs: list[Numbers]) -> Numbers:
    """Return the median of each number."""
    return {name: statistics.median(run.get(name, 0.0) for run in runs) for name in runs[0]}


def bandwidth(ways: Ways, name: Region, repeats: int) -> dict[str, float]:
    """Return bytes per second of moving a region, and of plain copies of the same bytes."""
    ours = ways.ours[name]
    ways.take("schedule")
    ours.onload()
    theirs = copied_region(name, ours, HABITS["call by call"])
    nbytes = ours.nbytes
    source, target = torch.ones(nbytes, dtype=torch.uint8), torch.ones(nbytes, dtype=torch.uint8)

    def to_new() -> None:
        torch.empty(nbytes, dtype=torch.uint8).copy_(source)

    def copies(*, to_host: bool) -> None:
        for each in ours.stored.values():
            assert each.place is not None, "the region keeps its contents"
            ends = (each.place.parts, each.device_parts(each.place))
            pairs = zip(*(ends if to_host else ends[::-1]), strict=True)
            ours.copies.start(pairs, lambda: None)
        ours.copies.finish()

    def release() -> None:
        ours.changed()
        ours.offload()

    timed: Mapping[str, Callable[[], object]] = {
        "copy_": lambda: target.copy_(source),
        "memmove": lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), nbytes),
        "copy_ to new memory": to_new,
        "copies of a release": lambda: copies(to_host=True),
        "copies of a return": lambda: copies(to_host=False),
        "release": release,
        "return": ours.onload,
        "release, call by call": theirs.offload,
        "return, call by call": theirs.onload,
    }
    seconds: dict[str, list[float]] = {each: [] for each in timed}
    # The first round warms up.
    for _ in range(3 * repeats + 1):
        for each, move in timed.items():
            start = time.process_time()
            move()
            seconds[each].append(time.process_time() - start)
    return {each: nbytes / statistics.median(took[1:]) for each, took in seconds.items()}
