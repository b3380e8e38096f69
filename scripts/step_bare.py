"""Generate and update without a trainer, for bench_step.py.

    python -m torch.distributed.run --nproc-per-node 2 scripts/step_bare.py JSON

JSON is a work as for step_rivals.py. Each rank has its share of the prompts, a vLLM engine, and the
model of transformers, which it trains with torch's AdamW on its answers: sorted by length, one
update, one all-reduce of the gradients. Nothing else of a step is done: no weights reach the
engine, no answer is rated, nothing is recorded. Rank 0 prints a JSON list: seconds, those of both
parts and response tokens of each step.
"""

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from step_rivals import Steps, Work, processes, rank, rows

Answer = tuple[list[int], list[int]]
"""Tokens of the prompt and of the response."""
_SEQUENCES = 32
"""Of one pass."""


def main() -> None:
    """Run the steps of the command line."""
    work = json.loads(sys.argv[1])
    dist.init_process_group("gloo")
    steps = run(work)
    if rank() == 0:
        print(json.dumps(steps))
    dist.destroy_process_group()


def run(work: Work) -> Steps:
    """Run all steps on this rank."""
    # The variable has to be there before vLLM is imported.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    vllm, transformers = import_module("vllm"), import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(work["model"])
    prompts = [tokenizer.encode(row["prompt"]) for row in rows(work, tokenizer)]
    share = work["prompts"] // processes()
    engine = vllm.LLM(
        work["model"],
        dtype="float32",
        enforce_eager=True,
        distributed_executor_backend="external_launcher",
        max_model_len=work["max_prompt"] + work["max_tokens"] + 8,
        max_num_seqs=share * work["samples"],
        kv_cache_memory_bytes=96 << 20,
        disable_log_stats=True,
    )
    sampling = vllm.SamplingParams(n=work["samples"], max_tokens=work["max_tokens"], logprobs=0)
    model = transformers.AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-12, fused=True)
    draw = random.Random(work["seed"] + rank())
    steps = []
    for _ in range(work["steps"]):
        asked = [{"prompt_token_ids": ids} for ids in draw.sample(prompts, share)]
        start = _together()
        outputs = engine.generate(asked, sampling, use_tqdm=False)
        between = _together()
        answers = [
            ([*output.prompt_token_ids], [*each.token_ids])
            for output in outputs
            for each in output.outputs
        ]
        update(model, optimizer, answers)
        end = _together()
        tokens = torch.tensor(sum(len(response) for _, response in answers))
        dist.all_reduce(tokens)
        steps.append(
            {
                "seconds": end - start,
                "seconds/generate": between - start,
                "seconds/update": end - between,
                "tokens": tokens.item(),
            }
        )
    return steps


def update(model: Any, optimizer: torch.optim.Optimizer, answers: Sequence[Answer]) -> None:
    """Make one update by the policy gradient, with little padding; advantages are 1 and -1."""
    trained = sum(len(response) for _, response in answers)
    optimizer.zero_grad()
    ordered = sorted(answers, key=lambda each: sum(map(len, each)))
    for first in range(0, len(ordered), _SEQUENCES):
        (-_objective(model, ordered[first : first + _SEQUENCES]) / trained).backward()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    flat = torch.cat([each.flatten() for each in gradients])
    dist.all_reduce(flat)
    for gradient, total in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient) / processes())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _objective(model: Any, answers: Sequence[Answer]) -> torch.Tensor:
    """Return the sum over response tokens of ratio times advantage."""
    ids_NS = _padded([[*prompt, *response] for prompt, response in answers])
    seen_NS = _padded([[1] * len(prompt + response) for prompt, response in answers])
    ours_NS = _padded([[0] * len(prompt) + [1] * len(response) for prompt, response in answers])
    kept = ids_NS.shape[1] - min(len(prompt) for prompt, _ in answers)
    logits_NKV = model(
        ids_NS, attention_mask=seen_NS, logits_to_keep=kept + 1, use_cache=False
    ).logits[:, :-1]
    logprobs_M = -torch.nn.functional.cross_entropy(
        logits_NKV.flatten(0, 1), ids_NS[:, -kept:].flatten(), reduction="none"
    )
    advantages_N1 = (1.0 - 2.0 * (torch.arange(len(answers)) % 2))[:, None]
    weights_M = (ours_NS[:, -kept:] * advantages_N1).flatten()
    return ((logprobs_M - logprobs_M.detach()).exp() * weights_M).sum()


def _padded(rows: list[list[int]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def _together() -> float:
    """Wait for the other ranks; return the time."""
    dist.barrier()
    return time.perf_counter()


if __name__ == "__main__":
    main()
