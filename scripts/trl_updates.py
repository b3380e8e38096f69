"""Time updates of TRL's GRPO on given sequences, for bench_train.py.

    python scripts/trl_updates.py JSON

JSON has model, tokenizer, samples and groups. Each line of standard input has the tokens of the
prompt and of the response; the answer is a line with the CPU seconds of an update on `samples`
sequences of each of `groups` prompts, a group in each pass, on one thread in float32.
"""

import json
import os
import sys
import tempfile
import time
from importlib import import_module
from typing import Any

import torch


def main() -> None:
    """Answer each line."""
    work = json.loads(sys.argv[1])
    # What a library prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    for line in sys.stdin:
        prompt, response = map(int, line.split())
        print(seconds(work, prompt, response), file=answers, flush=True)


def seconds(work: dict[str, Any], prompt: int, response: int) -> float:
    """Return the CPU seconds of the second update on sequences of these lengths."""
    trl, transformers = import_module("trl"), import_module("transformers")
    count = work["samples"] * work["groups"]
    generator = torch.Generator().manual_seed(2)
    given_BT = torch.randint(0, 8192, (count, prompt + response), generator=generator)
    first_B = torch.arange(count) // work["samples"] * work["samples"]
    ones_BT = torch.ones_like(given_BT)
    batch = {
        "prompt_ids": given_BT[first_B, :prompt],
        "prompt_mask": ones_BT[:, :prompt],
        "completion_ids": given_BT[:, prompt:],
        "completion_mask": ones_BT[:, prompt:],
        "advantages": torch.randn(count, generator=generator),
        "num_items_in_batch": torch.tensor(count * response),
    }

    class Given(trl.GRPOTrainer):  # type: ignore[misc,name-defined]
        def _generate_and_score_completions(self, _: Any) -> dict[str, Any]:
            return batch

    begins, ends = list[float](), list[float]()
    clock = type("Clock", (transformers.TrainerCallback,), {})()
    clock.on_step_begin = lambda *_, **__: begins.append(time.process_time())
    clock.on_step_end = lambda *_, **__: ends.append(time.process_time())
    with tempfile.TemporaryDirectory() as folder:
        trainer = Given(
            model=work["model"],
            processing_class=transformers.AutoTokenizer.from_pretrained(work["tokenizer"]),
            train_dataset=import_module("datasets").Dataset.from_list([{"prompt": "?"}] * count),
            reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
            callbacks=[clock],
            args=arguments(folder, work, count),
        )
        trainer.train()
    return ends[-1] - begins[-1]


def arguments(folder: str, work: dict[str, Any], count: int) -> Any:
    """Return TRL's arguments."""
    return import_module("trl").GRPOConfig(
        output_dir=folder,
        model_init_kwargs={"dtype": "float32"},
        use_cpu=True,
        bf16=False,
        max_steps=2,
        per_device_train_batch_size=work["samples"],
        gradient_accumulation_steps=work["groups"],
        num_generations=work["samples"],
        generation_batch_size=count,
        gradient_checkpointing=False,
        learning_rate=1e-12,
        beta=0.0,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


if __name__ == "__main__":
    main()
