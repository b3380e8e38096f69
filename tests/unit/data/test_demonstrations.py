"""Which tokens of a conversation are learned: those of answers and of what ends them."""

import json
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
from checked_runs import MakeConfig, model_folder
from transformers import PreTrainedTokenizerFast

from mindrl.batch.prompts import Demonstration
from mindrl.config.data import DataPath
from mindrl.config.megatron_training import PLAIN
from mindrl.data.demonstrations import load_demonstrations
from mindrl.data.prompts import PromptSet
from mindrl.data.reading import Reading
from mindrl.errors import DataError

END = 258
ASKED, FIRST = {"role": "user", "content": "1+1=?"}, {"role": "assistant", "content": "2"}
MORE, SECOND = {"role": "user", "content": "And 2+2?"}, {"role": "assistant", "content": "Four: 4"}
TALK = [{"role": "system", "content": "Add."}, ASKED, FIRST, MORE, SECOND]
MARKED = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\n' -}}"
    "{%- if message['role'] == 'assistant' -%}"
    "{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- message['content'] + '<|im_end|>' -}}{%- endif -%}{{- '\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
FORGETS = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\n' -}}"
    "{%- if loop.last or message['role'] != 'assistant' -%}{{- message['content'] -}}{%- endif -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
"""As templates that leave the thoughts of earlier answers out."""
Load = Callable[..., PromptSet]


@pytest.fixture
def load(
    tokenizer: PreTrainedTokenizerFast, run_config: MakeConfig, tmp_path: Path
) -> Callable[..., PromptSet]:
    """Read rows; keys of `sft_config` and a template change how."""
    model = model_folder(tmp_path / "model")

    def read(
        rows: Iterable[object], template: str | None = None, seq_length: int = 64, **sft: Any
    ) -> PromptSet:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
        given = {"megatron_training.seq_length": seq_length, "sft_config": sft}
        if template == PLAIN:
            given["megatron_training.chat_template"] = PLAIN
        config, rendering = run_config(model, given), deepcopy(tokenizer)
        rendering.chat_template = template or tokenizer.chat_template
        paths: DataPath = str(path)
        return load_demonstrations(paths, config, rendering, [END], Reading())

    return read


def learned(tokenizer: PreTrainedTokenizerFast, found: PromptSet) -> list[str]:
    """Return what is learned of each row, as text."""
    shown = [each for each in found.prompts if isinstance(each, Demonstration)]
    assert len(shown) == len(found.prompts)
    return [tokenizer.decode([*compress(each.token_ids, each.targets)]) for each in shown]


@pytest.mark.parametrize("template", [None, MARKED], ids=["by prefixes", "by marks"])
@pytest.mark.parametrize(
    ("turns", "text"),
    [("all", "2<|im_end|>Four: 4<|im_end|>"), ("last", "Four: 4<|im_end|>")],
)
def test_answers_and_what_ends_them_are_learned_and_nothing_else(
    template: str | None,
    turns: str,
    text: str,
    load: Load,
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    found = load([{"messages": TALK}, {"messages": [ASKED, FIRST]}], template, turns=turns)
    assert learned(tokenizer, found) == [text, "2<|im_end|>"]
    assert found.prompts[1].text.endswith("<|im_start|>assistant\n2<|im_end|>\n")
    # The newline behind the end of a turn is rendered, and never drawn.
    assert tokenizer.decode(found.prompts[1].token_ids) == found.prompts[1].text


def test_the_answer_may_stand_in_a_column_of_its_own(
    load: Load, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = [{"messages": "1+1=?", "out": {"text": "2"}}, {"messages": [ASKED], "out": {"text": 3}}]
    found = load(rows, response_column="out.text")
    assert learned(tokenizer, found) == ["2<|im_end|>", "3<|im_end|>"]
    assert [each.uid for each in found.prompts] == [0, 1]


def test_without_a_template_question_and_answer_stand_one_behind_the_other(
    load: Load, tokenizer: PreTrainedTokenizerFast
) -> None:
    (found,) = load([{"messages": "1+1=", "out": "2"}], "plain", response_column="out").prompts
    assert isinstance(found, Demonstration)
    assert tokenizer.decode(found.token_ids) == "1+1=2<|im_end|>"
    assert found.targets == (False,) * 4 + (True, True)


def refused(load: Load, rows: Sequence[object], *arguments: Any, **sft: Any) -> str:
    with pytest.raises(DataError) as error:
        load(rows, *arguments, **sft)
    return str(error.value)


def test_what_cannot_be_told_apart_or_does_not_end_is_refused_in_words(
    load: Load, tokenizer: PreTrainedTokenizerFast
) -> None:
    text = refused(load, [{"messages": [ASKED]}])
    assert "ends with a question; add an answer of the assistant, or name its column in" in text
    text = refused(load, [{"messages": [ASKED, FIRST]}], response_column="messages")
    assert "ends with an answer of the assistant; needed a question" in text
    text = refused(load, [{"messages": TALK}], FORGETS)
    assert "rows.jsonl:1, message 3: the chat template changes earlier text" in text
    assert text.endswith("sft_config.turns=last to train on the last answer only")
    found = load([{"messages": TALK}], FORGETS, turns="last")
    assert learned(tokenizer, found) == ["Four: 4<|im_end|>"]
    endless = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}"
    text = refused(load, [{"messages": [ASKED, FIRST]}], endless)
    assert "writes no end token after an answer" in text
    text = refused(load, [{"messages": [ASKED, FIRST]}], MARKED, 8)
    assert "conversation of 16 tokens is longer than megatron_training.seq_length=8" in text
