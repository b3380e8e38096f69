"""Works of bench_step.py: a model, prompts, and the lengths of its answers.

The models other than the quickstart's have random weights and end an answer with the same
probability after each token, so that the lengths of answers are geometric.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_runs import CHECKOUT
from transformers import Qwen2Config, Qwen2ForCausalLM

from mindrl.tiny.chat_model import build_model, build_tokenizer
from mindrl.tiny.questions import draw_splits

TINY = CHECKOUT / ".cache/tiny"
_POSITIONS = 1024


@dataclass(frozen=True, kw_only=True)
class Work:
    """One step: lengths in tokens."""

    model: str = str(TINY / "model")
    data: str = str(TINY / "data/train.jsonl")
    prompts: int = 32
    samples: int = 8
    max_prompt: int = 16
    max_tokens: int = 40

    def overrides(self) -> list[str]:
        """Return mindrl's keys."""
        longest = self.max_prompt + self.max_tokens + 8
        sequences = self.prompts * self.samples
        return [
            *(f"actor_config.load={self.model}", f"megatron_training.data_path={self.data}"),
            f"megatron_training.global_batch_size={self.prompts}",
            f"megatron_training.seq_length={longest}",
            f"actor_config.micro_batch_size={sequences}",
            f"rl_config.n_samples_per_prompt={self.samples}",
            f"rl_config.mini_batch_size={self.prompts}",
            f"rl_config.max_prompt_length={self.max_prompt}",
            f"generate_config.max_model_len={longest}",
            f"generate_config.max_num_seqs={sequences}",
            f"generate_config.sampling_config.max_tokens={self.max_tokens}",
        ]

    def of_rival(self, **more: Any) -> dict[str, Any]:
        """Return it for step_rivals.py."""
        return asdict(self) | more


def works(folder: Path) -> dict[str, Work]:
    """Write what the works need into a folder, and return them by name."""
    larger = random_model(folder / "larger", width=320, layers=6, mean_length=20)
    ending = random_model(folder / "ending", width=128, layers=4, mean_length=24)
    long = {"model": str(ending), "data": str(long_prompts(folder / "long.jsonl", characters=400))}
    return {
        "short": Work(),
        "long prompts": Work(**long, prompts=16, max_prompt=440, max_tokens=64),
        "long tail": Work(model=str(ending), max_tokens=192),
        "larger": Work(model=str(larger)),
    }


def random_model(folder: Path, *, width: int, layers: int, mean_length: int) -> Path:
    """Write a Qwen2 whose answers have a mean length, and return its folder."""
    tokenizer = build_tokenizer()
    tokenizer.model_max_length = _POSITIONS
    values = build_model(tokenizer, seed=1, layers=layers).config.to_dict() | {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "max_position_embeddings": _POSITIONS,
        "initializer_range": 0.02,
    }
    config = Qwen2Config(**values)
    model = Qwen2ForCausalLM(config)
    end = tokenizer.eos_token_id
    with torch.no_grad():
        # All tokens share a direction, along which the end's logit is the same everywhere.
        model.model.embed_tokens.weight += config.initializer_range
        hidden_ND = model.model(torch.randint(0, end, (8, 64))).last_hidden_state.flatten(0, 1)
        mean_D = hidden_ND.mean(dim=0)
        others_N = (hidden_ND @ model.lm_head.weight.T)[:, :end].logsumexp(dim=1)
        wanted = others_N.mean() - math.log(mean_length - 1)
        model.lm_head.weight[end] = wanted * mean_D / mean_D.square().sum()
        model.lm_head.weight[end + 1 :] -= mean_D * (20 / mean_D.square().sum())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def long_prompts(path: Path, *, characters: int) -> Path:
    """Write questions after worked examples; one character is one token."""
    questions, _ = draw_splits(train=1024, test=16, seed=1)
    shown = " ".join(f"{each.prompt[:-1]}{each.sum}" for each in questions[:64])[:characters]
    rows = [
        {
            "messages": [{"role": "user", "content": f"{shown}\n{each.prompt}"}],
            "answer": str(each.sum),
        }
        for each in questions
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
