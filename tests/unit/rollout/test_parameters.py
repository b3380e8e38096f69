"""Sampling parameters as each engine names them."""

from dataclasses import fields, replace
from typing import Any

from mindrl.config.generate import SamplingConfig, Truncation
from mindrl.rollout.chat_engine import AnswerSampling
from mindrl.rollout.engine import Sampling
from mindrl.rollout.parameters import answer_parameters, sglang_parameters, vllm_parameters

SECTION = SamplingConfig(
    temperature=0.7, max_tokens=9, top_p=0.9, top_k=5, min_p=0.1, stop_token_ids=(3,)
)
SAMPLED = Sampling(section=SECTION, stop_token_ids=(1, 3))
GREEDY = replace(SAMPLED, is_greedy=True)
TRUNCATED: dict[str, Any] = {"top_p": 0.9, "top_k": 5, "min_p": 0.1}


def test_a_request_to_vllm_is_the_rest_of_a_response() -> None:
    assert vllm_parameters(SAMPLED, 77, drawn=2) == {
        **TRUNCATED,
        "temperature": 0.7,
        "max_tokens": 7,
        "stop_token_ids": [1, 3],
        "seed": 77,
        "logprobs": 0,
        "detokenize": False,
    }
    greedy = {"temperature": 0.0, "seed": None, "logprobs": None}
    assert vllm_parameters(GREEDY, 77) == vllm_parameters(SAMPLED, 77) | greedy
    unseeded = replace(SAMPLED, is_seeded=False)
    assert vllm_parameters(unseeded, 77) == vllm_parameters(SAMPLED, 77) | {"seed": None}


def test_a_stop_string_is_found_in_special_tokens_and_kept() -> None:
    stops = replace(SAMPLED, section=replace(SECTION, stop=("\n\n",)))
    assert vllm_parameters(stops, 77) == vllm_parameters(SAMPLED, 77) | {
        "detokenize": True,
        "stop": ["\n\n"],
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }


def test_every_key_of_the_section_reaches_vllm() -> None:
    stops = replace(SAMPLED, section=replace(SECTION, stop=("a",)))
    assert {each.name for each in fields(SamplingConfig)} <= vllm_parameters(stops, 1).keys()


def test_a_request_to_sglang_has_its_names_and_its_sign_for_all_tokens() -> None:
    common = {**TRUNCATED, "max_new_tokens": 7, "stop_token_ids": [1, 3]}
    seeded = {"temperature": 0.7, "sampling_seed": 77}
    assert sglang_parameters(SAMPLED, 77, drawn=2) == common | seeded
    assert sglang_parameters(GREEDY, 77, drawn=2) == common | {"temperature": 0.0}
    for all_tokens in (0, -1):
        whole = replace(SAMPLED, section=replace(SECTION, top_k=all_tokens))
        assert sglang_parameters(whole, 77)["top_k"] == -1
        assert vllm_parameters(whole, 77)["top_k"] == all_tokens


def test_an_answer_leaves_to_the_model_what_was_not_asked_for() -> None:
    assert answer_parameters(AnswerSampling(max_tokens=5)) == {
        "n": 1,
        "max_tokens": 5,
        "stop_token_ids": [],
    }
    asked = AnswerSampling(
        samples=3,
        temperature=0.0,
        truncation=SECTION,
        max_tokens=5,
        stop_token_ids=(1,),
        stop=("\n\n",),
    )
    assert answer_parameters(asked) == {
        **TRUNCATED,
        "n": 3,
        "temperature": 0.0,
        "max_tokens": 5,
        "stop_token_ids": [1],
        "stop": ["\n\n"],
        "include_stop_str_in_output": True,
    }
    full = answer_parameters(AnswerSampling(max_tokens=5, truncation=Truncation()))
    assert (full["top_p"], full["top_k"], full["min_p"]) == (1.0, -1, 0.0)
