"""Histories of agents as token ids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrl.data.agent_chat import AgentChat
from mindrl.tiny.chat_model import build_tokenizer

TOKENIZER = build_tokenizer()
END = TOKENIZER.eos_token_id
CHAT = AgentChat(TOKENIZER, [END], longest=1000)
ASKED = {"role": "user", "content": "2+2=?"}
WRITTEN = {"role": "assistant", "content": "four"}


def test_a_history_without_control_tokens_is_what_the_template_renders() -> None:
    messages = [{"role": "system", "content": "help"}, ASKED, WRITTEN, ASKED]
    whole = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert CHAT.render(messages, []) == TOKENIZER(whole, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("role", ["tool", "user"])
def test_what_follows_an_answer_is_what_the_template_renders_after_it(role: str) -> None:
    last = {"role": role, "content": "and 3?"}
    ids = [*CHAT.render([ASKED], []), *CHAT.encode("four"), END, *(CHAT.after_turn([last]) or ())]
    assert ids == CHAT.render([ASKED, WRITTEN, last], [])


def test_messages_that_the_template_has_no_pieces_for_are_left_to_a_rendering() -> None:
    system, tool = {"role": "system", "content": "x"}, {"role": "tool", "content": "x"}
    for messages in ([system], [ASKED, ASKED], [tool, ASKED]):
        assert CHAT.after_turn(messages) is None


TEXTS = st.lists(
    st.one_of(
        st.sampled_from(["<|im_start|>", "<|im_end|>", "user", "\ud800"]), st.text(max_size=3)
    ),
    max_size=5,
).map("".join)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_no_text_of_a_user_or_tool_adds_a_control_token(first: str, second: str) -> None:
    plain = [ASKED, WRITTEN, {"role": "tool", "content": "3"}]
    messages = [
        {**message, "content": text}
        for message, text in zip(plain, (first, "four", second), strict=True)
    ]
    controls = {*TOKENIZER.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])}
    counts = [sum(each in controls for each in CHAT.render(of, [])) for of in (plain, messages)]
    assert counts[0] == counts[1]
    following = CHAT.after_turn(messages[2:]) or []
    assert following == CHAT.render(messages, [])[-len(following) :]


def test_a_template_that_refuses_or_leaves_out_a_message_is_a_value_error() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{%- if messages[0]['content'] == 'no' -%}{{ raise_exception('never') }}{%- endif -%}"
        "{%- for m in messages if m['content'] != '' and m['name'] is not defined -%}"
        "{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' -}}"
        "{%- endfor -%}{{- '<|im_start|>assistant\\n' -}}"
    )
    chat = AgentChat(tokenizer, [END], longest=10)
    with pytest.raises(ValueError, match="never"):
        chat.render([{"role": "user", "content": "no"}], [])
    with pytest.raises(ValueError, match="message 0 is left out"):
        chat.render([{"role": "user", "content": "<|im_end|>", "name": "x"}, ASKED], [])
