"""Messages of an environment as token ids: those that the chat template would have written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mindrl.data.inert_text import InertText
from mindrl.data.turn_template import TurnTemplate
from mindrl.errors import DataError, ModelError
from mindrl.tiny.chat_model import build_tokenizer
from mindrl.tiny.vision.model import build_vision_tokenizer

ASKED = {"role": "user", "content": "2+2=?"}
WRITTEN = {"role": "assistant", "content": "four"}
SYSTEM_FIRST = (
    "{%- if messages[0]['role'] != 'system' -%}"
    "{{- '<|im_start|>system\\nhelp<|im_end|>\\n' -}}{%- endif -%}"
    "{%- for m in messages -%}"
    "{%- if m['role'] == 'tool' -%}"
    "{%- if loop.previtem['role'] != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}"
    "{{- '\\n<tool_response>\\n' + m['content'] + '\\n</tool_response>' -}}"
    "{%- if loop.last or loop.nextitem['role'] != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- else -%}{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""Results of several tools are one message of the user, as in Qwen2.5."""


def tokenizer_of(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = build_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("template", [None, SYSTEM_FIRST])
@pytest.mark.parametrize(("role", "count"), [("tool", 1), ("tool", 2), ("tool", 3), ("user", 1)])
def test_written_tokens_and_messages_are_the_whole_rendering(
    template: str | None, role: str, count: int
) -> None:
    tokenizer = tokenizer_of(template)
    turns = TurnTemplate.of(tokenizer, [tokenizer.eos_token_id])
    texts = [f"result {at}" for at in range(count)]
    given_ = turns.after_turn([(role, text) for text in texts], longest=64)
    messages = [ASKED, WRITTEN, *({"role": role, "content": text} for text in texts)]
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer.apply_chat_template([ASKED], add_generation_prompt=True, tokenize=False)
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, "four")]
    assert turns.end == tokenizer.eos_token_id
    assert [*ids[0], *ids[1], turns.end, *given_] == tokenizer(whole, add_special_tokens=False)[
        "input_ids"
    ]


def test_a_prompt_ends_with_the_text_that_the_environment_begins_with() -> None:
    tokenizer = tokenizer_of(SYSTEM_FIRST)
    turns = TurnTemplate.of(tokenizer, [tokenizer.eos_token_id])
    found = turns.opening([ASKED], " Be brief.<|im_end|>")
    expected = "<|im_start|>system\nhelp<|im_end|>\n<|im_start|>user\n2+2=? Be brief.<|im_end|>"
    assert tokenizer.decode(found) == f"{expected}<|im_end|>\n<|im_start|>assistant\n"
    # The header, the system's end and the user's own end; not the text's.
    assert found.count(tokenizer.eos_token_id) == 2


def test_a_long_result_is_cut() -> None:
    tokenizer = tokenizer_of(None)
    turns = TurnTemplate.of(tokenizer, [tokenizer.eos_token_id])
    short, long = (turns.after_turn([("tool", "9" * n)], longest=5) for n in (5, 10_000_000))
    assert long == short


BY_DEPTH = (
    "{% for m in messages %}{{ loop.index if m['role'] == 'user' else '' }}{{ m['content'] }}"
    "<|im_end|>{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ messages[0]['content'] }}", "leaves out a turn of the assistant"),
        ("{% for m in messages %}{{ m['content'] }};{% endfor %}", "no token that ends a turn"),
        (BY_DEPTH, "by their depth"),
    ],
)
def test_a_template_that_cannot_have_turns_is_refused(template: str, error: str) -> None:
    tokenizer = tokenizer_of(template)
    with pytest.raises(ModelError, match=error):
        TurnTemplate.of(tokenizer, [tokenizer.eos_token_id])


NUMBERED = (
    "{%- set seen = namespace(pictures=0) -%}"
    "{%- for m in messages -%}{{- '<|im_start|>' + m['role'] + '\\n' -}}"
    "{%- if m['content'] is string -%}{{- m['content'] -}}{%- else -%}"
    "{%- for part in m['content'] -%}{%- if part['type'] == 'image' -%}"
    "{%- set seen.pictures = seen.pictures + 1 -%}"
    "{{- 'Picture ' ~ seen.pictures ~ ': <|image_pad|>' -}}"
    "{%- else -%}{{- part['text'] -}}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""Writes a picture by its place."""


@pytest.mark.parametrize(("template", "is_alike"), [(None, True), (NUMBERED, False)])
def test_a_picture_is_shown_if_the_template_writes_it_alike_at_any_place(
    template: str | None, is_alike: bool
) -> None:
    tokenizer = build_vision_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    turns = TurnTemplate.of(tokenizer, [tokenizer.eos_token_id], image_token=pad)
    if is_alike:
        given_ = turns.after_turn([("tool", ("a", "b" * 9, "c"))], longest=4)
        one = "<|vision_start|><|image_pad|><|vision_end|>"
        # Text beyond the limit is cut off, no picture is.
        assert tokenizer.decode(given_).startswith(f"\n<|im_start|>tool\na{one}bbb{one}<|im_end|>")
        return
    with pytest.raises(DataError, match="writes no pictures in messages of role tool"):
        turns.after_turn([("tool", ("a", "b"))], longest=4)


TOKENIZER = build_tokenizer()
ADDED = {id_: each.content for id_, each in TOKENIZER.added_tokens_decoder.items()}
PIECES = st.one_of(st.sampled_from([*ADDED.values()]), st.text(max_size=4))


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=8).map("".join))
def test_no_text_becomes_an_added_token_and_it_reads_as_it_was(text: str) -> None:
    ids = InertText(TOKENIZER).token_ids(text)
    # `, ` and words are added too: a control token is one of them.
    assert not {*ids} & ADDED.keys()
    plain = text.encode("utf-8", "replace").decode()
    backend = TOKENIZER.backend_tokenizer
    assert TOKENIZER.decode(ids) == backend.normalizer.normalize_str(plain)


def test_halves_of_surrogate_pairs_are_replaced() -> None:
    assert TOKENIZER.decode(InertText(TOKENIZER).token_ids("a\ud800b")) == "a?b"
