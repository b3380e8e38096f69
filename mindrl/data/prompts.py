"""Interim."""

import json
import pathlib
from dataclasses import dataclass
from typing import Literal

from mindrl.batch.prompts import Prompt


@dataclass(frozen=True, kw_only=True)
class PromptSource:
    path: str
    prompt_column: str
    answer_column: str
    max_prompt_length: int
    overlong_prompt_policy: Literal["error", "drop"]
    system_prompt: str | None


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    prompts: tuple[Prompt, ...]
    dropped: int


def load_prompts(source, tokenizer):
    out = []
    for i, l in enumerate(pathlib.Path(source.path).open()):
        r = json.loads(l)
        m = r[source.prompt_column]
        ids = tokenizer.apply_chat_template(m, add_generation_prompt=True)["input_ids"]
        out.append(
            Prompt(
                uid=i,
                token_ids=tuple(ids),
                text=tokenizer.decode(ids),
                reference=str(r[source.answer_column]),
            )
        )
    return PromptSet(prompts=tuple(out), dropped=0)
