"""Prompts of base models, and what ends a response besides a turn."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked_runs import model_folder, refused
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.data.run_data import RunData, data_lines, read_data
from mindrl.errors import ConfigError

MakeConfig = Callable[..., RunConfig]
TEMPLATE, SAMPLING = "megatron_training.chat_template", "generate_config.sampling_config"
PLAIN = {TEMPLATE: "plain"}


@pytest.fixture
def base(tokenizer_folder: Path, tmp_path: Path) -> Path:
    """A base model: its tokenizer ends a text, begins none, and has no template."""
    model = model_folder(tmp_path / "base", vocab_size=300)
    shutil.copytree(tokenizer_folder, model, dirs_exist_ok=True)
    (model / "chat_template.jinja").unlink()
    settings = json.loads((model / "tokenizer_config.json").read_text("utf-8"))
    settings["eos_token"] = "<|endoftext|>"
    (model / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return model


@pytest.fixture
def read(run_config: MakeConfig, tmp_path: Path) -> Any:
    def read(model: Path, changes: dict[str, Any], prompt: Any = "Q: 1+1=?\nA:") -> RunData:
        data = tmp_path / "rows.jsonl"
        data.write_text(json.dumps({"messages": prompt, "answer": "2"}))
        return read_data(run_config(model, {"megatron_training.data_path": str(data), **changes}))

    return read


def test_a_plain_prompt_is_its_text_and_no_more(base: Path, read: Any) -> None:
    for prompt in ("Q: 1+1=?\nA:", [{"role": "user", "content": "Q: 1+1=?\nA:"}]):
        data = read(base, PLAIN, prompt)
        [found] = data.train.prompts
        assert found.text == data.tokenizer.decode(found.token_ids) == "Q: 1+1=?\nA:"
    assert data.stop_token_ids == (256,)
    assert [*data_lines(data)][-1] == "a response ends with <|endoftext|> (256)"


def test_a_tokenizer_that_begins_each_text_begins_a_plain_prompt_too(
    base: Path, read: Any, tokenizer: PreTrainedTokenizerFast
) -> None:
    begun = type(tokenizer)(
        tokenizer_object=tokenizer.backend_tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
    )
    begun.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>",
        special_tokens=[("<|endoftext|>", 256), ("<|im_end|>", 258)],
    )
    (base / "tokenizer.json").unlink()
    begun.save_pretrained(base)
    [found] = read(base, PLAIN, "a").train.prompts
    assert found.token_ids == (256, begun.convert_tokens_to_ids("a"))


def test_a_model_without_a_template_is_answered_with_both_ways(base: Path, read: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read(base, {})
    assert str(caught.value).endswith(
        f"Set {TEMPLATE} to a template file, or to plain for a base model, which reads "
        "prompts unchanged"
    )


def test_a_template_of_the_configuration_comes_before_the_tokenizers(
    base: Path, read: Any, tmp_path: Path
) -> None:
    template = tmp_path / "own.jinja"
    template.write_text(
        "Q: {{ messages[0]['content'] }}{% if messages[1] is defined %} {{ "
        "messages[1]['content'] }}<|im_end|>{% endif %}"
    )
    data = read(base, {TEMPLATE: str(template)}, "1+1")
    assert data.train.prompts[0].text == "Q: 1+1"
    assert data.stop_token_ids == (256, 258)


def test_a_chat_of_several_messages_is_no_plain_text(base: Path, read: Any) -> None:
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}]
    with pytest.raises(ConfigError) as caught:
        read(base, PLAIN, chat)
    assert str(caught.value).endswith(
        f"rows.jsonl:1: 2 messages; {TEMPLATE}=plain needs text or one message"
    )


def test_a_template_that_is_not_there_and_a_system_prompt_without_one_are_refused(
    base: Path, run_config: MakeConfig, tmp_path: Path
) -> None:
    data = tmp_path / "train.jsonl"
    data.touch()
    given = {"megatron_training.data_path": str(data), TEMPLATE: "/no/own.jinja"}
    assert refused(run_config(base, given)) == [f"{TEMPLATE}=/no/own.jinja: no such file"]
    given = {TEMPLATE: "plain", "megatron_training.system_prompt": "Add."}
    assert [str(each) for each in findings(run_config(base, given))] == [
        (
            f"megatron_training.system_prompt cannot be used with {TEMPLATE}=plain; put the "
            "text into the rows"
        )
    ]


def test_tokens_and_texts_of_the_configuration_end_a_response_too(base: Path, read: Any) -> None:
    data = read(base, PLAIN | {f"{SAMPLING}.stop_token_ids": [258], f"{SAMPLING}.stop": ["\nQ:"]})
    assert data.stop_token_ids == (256, 258)
    assert [*data_lines(data)][-1] == (
        r"a response ends with <|endoftext|> (256) or <|im_end|> (258) or '\nQ:'"
    )
    with pytest.raises(
        ConfigError, match=r"stop_token_ids: 9999 is not a token of .*, which has 264"
    ):
        read(base, PLAIN | {f"{SAMPLING}.stop_token_ids": [9999]})


def test_texts_end_responses_of_one_engine_with_the_models_tokenizer(
    run_config: MakeConfig,
) -> None:
    stop = {f"{SAMPLING}.stop": ["\nQ:"]}
    assert findings(run_config(Path("model"), stop)) == []
    [finding] = findings(run_config(Path("model"), stop | {"rl_config.partial_rollout": True}))
    assert str(finding) == (
        f'{SAMPLING}.stop=["\\nQ:"] needs one engine for the whole response, found '
        "rl_config.partial_rollout=true; use stop_token_ids instead"
    )
    tokenizer = {"megatron_training.tokenizer_name_or_path": "other"}
    [finding] = findings(run_config(Path("model"), stop | tokenizer))
    assert "needs the tokenizer in actor_config.load" in str(finding)
    assert findings(run_config(Path("model"), {f"{SAMPLING}.stop": []} | tokenizer)) == []
