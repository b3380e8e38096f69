"""Train with one of TRL's trainers, for compare_trl.py.

    python scripts/trl_trainers.py FORM DATA JSON

JSON has model, teacher, updates, rows, lr, beta and eps. DATA has a row per line; for distillation
a line per update, with the token ids of its `prompts` and `responses`. Prints a JSON list: loss and
norm of the gradient of each update.
"""

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

# An answer ends with its stop token, as it is sampled; the line break begins what follows.
TEMPLATE = """{%- for message in messages -%}
{%- if not loop.first %}{{ '\\n' }}{% endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '\\n<|im_start|>assistant\\n' }}{% endif -%}"""
DIVERGENCES = {"forward": 0.0, "reverse": 1.0}
"""TRL's `beta` of the forms of distillation."""


def main() -> None:
    """Train, and print what each update logged."""
    form, data, work = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    lines = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    trl = import_module("trl")
    if form in DIVERGENCES:
        found = distilled(trl, DIVERGENCES[form], lines, work)
    else:
        found = trained(*of_answers(trl, form, work["beta"]), lines, work)
    print(json.dumps(found))


def of_answers(trl: Any, form: str, beta: float) -> tuple[Any, Any, dict[str, Any]]:
    """Return the trainer for rows with answers, its class of arguments, and those it alone has."""
    match form:
        case "kto":
            return trl.KTOTrainer, trl.KTOConfig, {"loss_type": "kto", "beta": beta}
        case "bradley_terry":
            return trl.RewardTrainer, trl.RewardConfig, {"center_rewards_coefficient": beta}
        case _:
            return trl.DPOTrainer, trl.DPOConfig, {"loss_type": [form], "beta": beta}


def distilled(
    trl: Any, beta: float, steps: list[dict[str, Any]], work: dict[str, Any]
) -> list[list[float]]:
    """Train on given responses instead of sampling."""
    given = iter(steps)

    class Trainer(trl.DistillationTrainer):  # type: ignore[misc]
        def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
            step = next(given)
            assert len(prompts) == len(step["prompts"])
            return step["prompts"], step["responses"], None, None, None

    arguments = {
        "beta": beta,
        "shuffle_dataset": False,
        "teacher_model_init_kwargs": {"dtype": "float32"},
    }
    rows = [{"prompt": "unused"}] * (work["rows"] * work["updates"])
    return trained(
        Trainer, trl.DistillationConfig, arguments, rows, work, teacher_model=work["teacher"]
    )


def trained(
    trainer_of: Any,
    settings: Any,
    arguments: dict[str, Any],
    rows: list[dict[str, Any]],
    work: dict[str, Any],
    **more: Any,
) -> list[list[float]]:
    """Train with a trainer; `arguments` are those that it alone has."""
    transformers, torch = map(import_module, ("transformers", "torch"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(work["model"])
    tokenizer.chat_template = TEMPLATE
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(
            model=work["model"],
            processing_class=tokenizer,
            train_dataset=import_module("datasets").Dataset.from_list(rows),
            args=settings(
                **arguments,
                output_dir=folder,
                model_init_kwargs={"dtype": "float32"},
                max_steps=work["updates"],
                per_device_train_batch_size=work["rows"],
                train_sampling_strategy="sequential",
                learning_rate=work["lr"],
                lr_scheduler_type="constant",
                weight_decay=0.0,
                adam_beta2=0.95,
                adam_epsilon=work["eps"],
                max_grad_norm=1.0,
                gradient_checkpointing=False,
                use_cpu=True,
                bf16=False,
                logging_steps=1,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
            **more,
        )
        torch.manual_seed(0)
        trainer.train()
    logged = [row for row in trainer.state.log_history if "grad_norm" in row]
    return [[row["loss"], row["grad_norm"]] for row in logged]


if __name__ == "__main__":
    main()
