"""Train on preferences with TRL, for compare_trl.py.

    python scripts/trl_preferences.py FORM DATA JSON

JSON has updates, rows, lr, beta and eps. Prints a JSON list: loss and norm of the gradient of each
update.
"""

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

MODEL = Path(__file__).parents[1] / ".cache/tiny/model"
# An answer ends with its stop token, as it is sampled; the line break begins what follows.
TEMPLATE = """{%- for message in messages -%}
{%- if not loop.first %}{{ '\\n' }}{% endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '\\n<|im_start|>assistant\\n' }}{% endif -%}"""


def main() -> None:
    """Train, and print what each update logged."""
    form, data, work = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    lines = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    found = trained(form, lines, work)
    print(json.dumps(found))


def trained(form: str, rows: list[dict[str, Any]], work: dict[str, Any]) -> list[Any]:
    """Train with the trainer of a form."""
    trl, transformers, torch = map(import_module, ("trl", "transformers", "torch"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    tokenizer.chat_template = TEMPLATE
    of_labels = form == "kto"
    arguments = {"loss_type": "kto" if of_labels else [form], "beta": work["beta"]}
    settings = trl.KTOConfig if of_labels else trl.DPOConfig
    with tempfile.TemporaryDirectory() as folder:
        trainer = (trl.KTOTrainer if of_labels else trl.DPOTrainer)(
            model=str(MODEL),
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
        )
        torch.manual_seed(0)
        trainer.train()
    logged = [row for row in trainer.state.log_history if "grad_norm" in row]
    return [[row["loss"], row["grad_norm"]] for row in logged]


if __name__ == "__main__":
    main()
