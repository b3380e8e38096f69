"""Take steps of GRPO in the environment of adder.py with TRL, for bench_tools.py.

    python scripts/trl_tools.py JSON

JSON has model, data, prompts, samples, max_tokens, turns, steps and seed. Prints a JSON object:
`seconds` and `tokens` of each step, and `conversations` with their row, the token ids after the
prompt, for each whether the policy sampled it, and the reward.
"""

import json
import sys
import tempfile
import time
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from adder import Adder

TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
"""The model's own template, and calls of tools as the model writes them."""
PARSER = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def main() -> None:
    """Take the steps, and print what was drawn."""
    print(json.dumps(trained(json.loads(sys.argv[1]))))


def trained(work: dict[str, Any]) -> dict[str, Any]:
    """Train with TRL; the first step has no start time."""
    trl, transformers = import_module("trl"), import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(work["model"])
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, PARSER
    lines = map(json.loads, Path(work["data"]).read_text(encoding="utf-8").splitlines())
    rows = [{"prompt": each["messages"], "answer": each["answer"]} for each in lines]
    ends: list[float] = []
    drawn: list[dict[str, Any]] = []

    class Recording(trl.GRPOTrainer):  # type: ignore[misc,name-defined]
        """Notes the tokens of all conversations, and whose they are."""

        def _tool_call_loop(self, *given: Any, **more: Any) -> Any:
            found = super()._tool_call_loop(*given, **more)
            masks, ids = found[0], found[2]
            drawn.extend({"mask": mask, "ids": each} for mask, each in zip(masks, ids, strict=True))
            return found

    def note(environments: list[Any], answer: list[str], **_: object) -> list[float]:
        for each, environment, row in zip(drawn[-len(answer) :], environments, answer, strict=True):
            each |= {"reward": environment.get_reward(), "answer": row}
        return [0.0] * len(answer)

    clock = type("Clock", (transformers.TrainerCallback,), {})()
    clock.on_step_end = lambda *_, **__: ends.append(time.perf_counter())
    with tempfile.TemporaryDirectory() as folder:
        trainer = Recording(
            model=work["model"],
            processing_class=tokenizer,
            train_dataset=import_module("datasets").Dataset.from_list(rows),
            reward_funcs=[note],
            environment_factory=Adder,
            callbacks=[clock],
            args=arguments(folder, work),
        )
        trainer.train()
    size = work["prompts"] * work["samples"]
    tokens = [
        sum(map(len, (each["ids"] for each in drawn[at : at + size])))
        for at in range(0, len(drawn), size)
    ]
    seconds = [behind - before for before, behind in pairwise(ends)]
    return {"seconds": seconds, "tokens": tokens[1:], "conversations": drawn}


def arguments(folder: str, work: dict[str, Any]) -> Any:
    """Return TRL's arguments."""
    return import_module("trl").GRPOConfig(
        output_dir=folder,
        model_init_kwargs={"dtype": "float32"},
        use_cpu=True,
        bf16=False,
        max_steps=work["steps"],
        # One update on all conversations of the step, as in mindrl's run.
        per_device_train_batch_size=work["prompts"] * work["samples"],
        num_generations=work["samples"],
        steps_per_generation=1,
        gradient_checkpointing=False,
        max_completion_length=work["max_tokens"],
        max_tool_calling_iterations=work["turns"] - 1,
        learning_rate=1e-12,
        beta=0.0,
        seed=work["seed"],
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


if __name__ == "__main__":
    main()
