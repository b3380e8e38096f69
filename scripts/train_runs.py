"""The trained models of scripts/bench_train.py. Imported in a process that Megatron can live in."""

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from logprob_memory import allocated
from safetensors.torch import save_file
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.nn.utils.rnn import pad_sequence
from torch.profiler import ProfilerActivity, profile

from mindrl.algorithms.policy_loss import PolicyLoss
from mindrl.algorithms.token_loss import resolve_token_loss
from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Minibatch
from mindrl.batch.sequences import Sequences
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.rl import RLConfig
from mindrl.config.role import LearningConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import read_description
from mindrl.platform.attention import attention_kernel
from mindrl.training.engine import StatePart
from mindrl.training.megatron.engine import MegatronEngine
from mindrl.training.megatron.model import ModelSettings
from mindrl.training.megatron.parallel import ParallelGroups
from mindrl.training.megatron.sharding import megatron_sharding
from mindrl.training.rows import cut_by_rows

PROMPT = 16
TURNS, OF_A_TURN = 4, (128, 64, 32, 32)
"""Of a conversation; tokens of its prompt, and of each thought, answer and observation."""

MODEL = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""3.9 million weights in the layers, 2.1 million in the head."""

RECOMPUTED: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a batch is cut and laid out."""

    micro_batching: MicroBatching
    packed: bool
    shares_prompts: bool = False


class Trainer:
    """A model of 4 layers and the batch that it is to learn from."""

    def __init__(
        self, folder: str, minibatch: Minibatch, recompute: Mapping[str, Any] | None = None
    ) -> None:
        """Build it; it learns too slowly for float32: every update begins with the same weights."""
        learning = LearningConfig(lr=1e-30, weight_decay=0.0, **(recompute or {}))
        settings = ModelSettings(
            layout=TrainLayout(),
            groups=ParallelGroups(TrainLayout(), seed=1, timeout_minutes=10),
            training=MegatronTrainingConfig(
                train_iters=1,
                global_batch_size=1,
                seq_length=minibatch.tokens_BT.size(1),
                data_path="unused.jsonl",
                bf16=False,
            ),
            learning=learning,
            device_type="cpu",
            attention=attention_kernel("cpu"),
        )
        model = read_description(folder)
        known = model, megatron_sharding(model, TrainLayout(), dtype="float32")
        self.model = MegatronEngine(folder, settings, known, updates=1)
        self.loss = PolicyLoss(
            tokens=resolve_token_loss(RLConfig(mini_batch_size=1)),
            kl_kind="k3",
            kl_coef=0.0,
            entropy_coef=0.01,
        )
        old = self.model.forward(minibatch, MicroBatching(sequences=4))
        assert old is not None
        self.minibatch = replace(minibatch, old_logprobs_BT=old[0])

    def update(self, way: Way) -> tuple[float, float, Tensor]:
        """Return processor seconds, the norm that the metrics say, and the gradient."""
        self._take(way)
        start = time.process_time()
        metrics = self._step(way)
        seconds = time.process_time() - start
        gradient = [part.flatten().clone() for part in self.model.state(StatePart.GRADIENTS)]
        return seconds, metrics["grad_norm"], torch.cat(gradient)

    def peak(self, way: Way) -> int:
        """Return the most bytes that an update has allocated at a time."""
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            self._step(way)
        return allocated(profiler)

    def work(self, way: Way) -> tuple[int, int]:
        """Return the passes of an update and the tokens that go through the network."""
        _, parts = cut_by_rows(
            self.minibatch, way.micro_batching, shares_prompts=way.shares_prompts
        )
        self._take(way)
        with self.model.settings.groups.active():
            packs = self.model.packs(parts)
        return len(packs), sum(pack.tokens_1S.size(1) for pack in packs)

    def _take(self, way: Way) -> None:
        self.model.settings = replace(
            self.model.settings, removes_padding=way.packed, shares_prompts=way.shares_prompts
        )

    def _step(self, way: Way) -> dict[str, float]:
        return self.model.train_step(self.minibatch, way.micro_batching, self.loss)


def batch(lengths: Sequence[int], prompt: int = PROMPT, samples: int = 1) -> Minibatch:
    """Make sequences of random tokens; all but the first `prompt` are responses.

    Each prompt has `samples` of them.
    """
    generator = torch.Generator().manual_seed(2)
    B, T = len(lengths), max(lengths)
    lengths_B = torch.tensor(lengths)
    inside_BT = torch.arange(T) < lengths_B[:, None]
    response_BT = inside_BT & (torch.arange(T) >= prompt)
    tokens_BT = torch.randint(0, 8192, (B, T), generator=generator) * inside_BT
    first_B = torch.arange(B) // samples * samples
    tokens_BT[:, :prompt] = tokens_BT[first_B, :prompt]
    made = Sequences(tokens_BT=tokens_BT, lengths_B=lengths_B, response_mask_BT=response_BT)
    return _rated(made, generator)


def conversations(samples: int, scale: int) -> Minibatch:
    """Make conversations of random tokens about one prompt, with a sequence for each turn.

    A later prompt has no thoughts. All sizes are divided by `scale`.
    """
    generator = torch.Generator().manual_seed(2)
    prompt, thought, answer, observation = (size // scale for size in OF_A_TURN)

    def drawn(count: int) -> Tensor:
        return torch.randint(0, 8192, (count,), generator=generator)

    rows, masks, first = list[Tensor](), list[Tensor](), drawn(prompt)
    for _ in range(samples):
        asked = first
        for _ in range(TURNS):
            written = drawn(thought + answer)
            rows.append(torch.cat([asked, written]))
            masks.append(torch.arange(len(rows[-1])) >= len(asked))
            asked = torch.cat([asked, written[thought:], drawn(observation)])
    made = Sequences(
        tokens_BT=pad_sequence(rows, batch_first=True),
        lengths_B=torch.tensor([*map(len, rows)]),
        response_mask_BT=pad_sequence(masks, batch_first=True),
        tree_B=torch.zeros(len(rows), dtype=torch.int64),
    )
    return _rated(made, generator)


def _rated(sequences: Sequences, generator: torch.Generator) -> Minibatch:
    (B, T), mask_BT = sequences.tokens_BT.shape, sequences.response_mask_BT
    return sequences.into(
        Minibatch,
        old_logprobs_BT=torch.zeros(B, T),
        advantages_BT=torch.randn(B, 1, generator=generator).expand(B, T).contiguous(),
        token_weights_BT=token_mean_weights(mask_BT),
        ref_logprobs_BT=None,
    )


def with_model(run: Callable[[str], dict[str, object]]) -> dict[str, object]:
    """Give a folder of random weights to a function, in a group of one process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        generator = torch.Generator().manual_seed(3)
        weights = {
            name: torch.randn(shape, generator=generator) * 0.05 + ("norm" in name)
            for name, shape in logical_shapes(read_description(folder)).items()
        }
        save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})
        results = run(folder)
    dist.destroy_process_group()
    return results


def compare(
    trainers: Mapping[str, Trainer], ways: Mapping[str, Way], repeats: int
) -> dict[str, dict[str, float]]:
    """Run all ways with all trainers in turn, `repeats` times; returns the figures of each.

    Differences are relative, to the first way of the first trainer: of the norms that the metrics
    say, and the norm of the gradients' difference.
    """
    names = {f"{trainer}{way}": (trainer, way) for trainer in trainers for way in ways}
    first = next(iter(names.values()))
    _, norm, gradient = trainers[first[0]].update(ways[first[1]])
    results: dict[str, dict[str, float]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name, (trainer, way) in [*names.items()] * repeats:
        took, other_norm, other = trainers[trainer].update(ways[way])
        seconds[name].append(took)
        passes, tokens = trainers[trainer].work(ways[way])
        results[name] = {
            "seconds": statistics.median(seconds[name]),
            "passes": passes,
            "tokens": tokens,
            "norm": other_norm,
            "norm_difference": abs(other_norm / norm - 1),
            "gradient_difference": float((other - gradient).norm() / gradient.norm()),
        }
    return results


@contextmanager
def trl_updates(python: str, work: Mapping[str, Any]) -> Iterator[Callable[[int, int], float]]:
    """Start TRL; yield what returns the CPU seconds of an update on sequences of given lengths."""
    command = [python, str(Path(__file__).with_name("trl_updates.py")), json.dumps(work)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def seconds(prompt: int, response: int) -> float:
            print(prompt, response, file=asked, flush=True)
            return float(answers.readline())

        yield seconds
        asked.close()
