"""Run the same step with TRL's GRPO trainer, for bench_step.py.

    python [-m torch.distributed.run --nproc-per-node 2] scripts/step_rivals.py WAY JSON

WAY is the engine that generates: `transformers` or `vllm`. JSON has model, data, prompts, samples,
max_tokens, steps and seed. Rank 0 prints a JSON list: seconds and response tokens of each step.
"""

import json
import os
import sys
import time
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

Work = dict[str, Any]
Steps = list[dict[str, float]]


def main() -> None:
    """Run the steps of the command line."""
    way, work = sys.argv[1], json.loads(sys.argv[2])
    steps = trained(way, work)
    if rank() == 0:
        print(json.dumps(steps))


def rank() -> int:
    """Return the rank of this process."""
    return int(os.environ.get("RANK", "0"))


def processes() -> int:
    """Return the number of processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rows(work: Work, tokenizer: Any) -> list[dict[str, str]]:
    """Read the prompts, as text, and their answers."""
    lines = map(json.loads, Path(work["data"]).read_text(encoding="utf-8").splitlines())
    return [
        {
            "prompt": tokenizer.apply_chat_template(
                line["messages"], tokenize=False, add_generation_prompt=True
            ),
            "answer": line["answer"],
        }
        for line in lines
    ]


def trained(way: str, work: Work) -> Steps:
    """Train with TRL; the first step does not count, because it has no start time."""
    trl, transformers = import_module("trl"), import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(work["model"])
    clock = _Clock(transformers.TrainerCallback)
    if way == "vllm":
        _prepare_vllm()
    trainer = trl.GRPOTrainer(
        model=work["model"],
        processing_class=tokenizer,
        train_dataset=import_module("datasets").Dataset.from_list(rows(work, tokenizer)),
        reward_funcs=clock.reward,
        callbacks=[clock.callback],
        args=trl.GRPOConfig(
            output_dir="/nonexistent",
            model_init_kwargs={"dtype": "float32"},
            use_cpu=True,
            bf16=False,
            max_steps=work["steps"],
            # One update on all responses of the step, as in mindrl's run.
            per_device_train_batch_size=work["prompts"] * work["samples"] // processes(),
            num_generations=work["samples"],
            steps_per_generation=1,
            gradient_checkpointing=False,
            max_completion_length=work["max_tokens"],
            learning_rate=1e-12,
            beta=0.0,
            seed=work["seed"],
            use_vllm=way == "vllm",
            vllm_mode="colocate",
            # Off: it saves a pass of TRL.
            vllm_importance_sampling_correction=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    return clock.steps()


class _Clock:
    """Records the end and the response tokens of each step of TRL."""

    def __init__(self, base: type) -> None:
        self.ends: list[float] = []
        self.tokens: list[int] = []
        # TRL requires the class of a callback.
        self.callback = type("Clock", (base,), {"on_step_end": self._note})()

    def _note(self, *_: object, **__: object) -> None:
        self.ends.append(time.perf_counter())

    def reward(
        self,
        completions: list[str],
        answer: list[str],
        completion_ids: list[list[int]],
        **_: object,
    ) -> list[float]:
        self.tokens.append(sum(map(len, completion_ids)))
        return [float(right in text) for text, right in zip(completions, answer, strict=True)]

    def steps(self) -> Steps:
        return [
            {"seconds": behind - before, "tokens": tokens * processes()}
            for (before, behind), tokens in zip(pairwise(self.ends), self.tokens[1:], strict=False)
        ]


def _prepare_vllm() -> None:
    """Let TRL's engine run on a CPU with the best settings.

    Packed layers would have no parameter to which TRL could write the new weights. Graphs need
    compiled code, which takes two minutes to build.
    """
    layers = import_module("vllm.model_executor.layers.utils")
    linear = import_module("vllm.model_executor.layers.linear")

    def unpacked(layer: Any, remove_weight: bool) -> None:  # noqa: ARG001 - as vLLM calls it
        layer.cpu_linear = torch.nn.functional.linear

    for module in (layers, linear):
        if hasattr(module, "dispatch_cpu_unquantized_gemm"):
            module.dispatch_cpu_unquantized_gemm = unpacked  # type: ignore[attr-defined]
    generation: Any = import_module("trl.generation.vllm_generation")
    generation.LLM = partial(
        generation.LLM, enforce_eager=True, kv_cache_memory_bytes=96 << 20, dtype="float32"
    )


if __name__ == "__main__":
    main()
