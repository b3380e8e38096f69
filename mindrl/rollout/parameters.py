"""Sampling parameters of a request, as dictionaries under the names of each engine."""

from typing import Any

from mindrl.rollout.chat_engine import AnswerSampling
from mindrl.rollout.engine import Sampling

_SGLANG_NAMES = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
_KEPT_STOPS = {"include_stop_str_in_output": True}


def vllm_parameters(sampling: Sampling, seed: int, *, drawn: int = 0) -> dict[str, Any]:
    """Return vLLM's parameters of a response of which `drawn` tokens exist.

    For `SamplingParams`, and as JSON for the token route of the server.
    """
    stop = sampling.section.stop
    values = _values(sampling, seed, drawn) | {
        "logprobs": None if sampling.is_greedy else 0,
        "detokenize": bool(stop),
    }
    if stop:
        # Search all sampled text, special tokens included.
        values |= {"stop": [*stop], "skip_special_tokens": False, **_KEPT_STOPS}
    return values


def sglang_parameters(sampling: Sampling, seed: int, *, drawn: int = 0) -> dict[str, Any]:
    """Return SGLang's parameters of a response of which `drawn` tokens exist."""
    values = _values(sampling, seed, drawn)
    # 0 is not allowed here.
    values["top_k"] = values["top_k"] or -1
    return {
        _SGLANG_NAMES.get(name, name): value for name, value in values.items() if value is not None
    }


def answer_parameters(sampling: AnswerSampling) -> dict[str, Any]:
    """Return vLLM's parameters of an answer, without those that the model's folder decides."""
    values: dict[str, Any] = {
        "n": sampling.samples,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": [*sampling.stop_token_ids],
    }
    if sampling.temperature is not None:
        values["temperature"] = sampling.temperature
    if sampling.truncation is not None:
        values |= sampling.truncation.truncation()
    if sampling.stop:
        values |= {"stop": [*sampling.stop], **_KEPT_STOPS}
    return values


def _values(sampling: Sampling, seed: int, drawn: int) -> dict[str, Any]:
    section, greedy = sampling.section, sampling.is_greedy
    return {
        # At temperature 0 an engine ignores truncation of the distribution.
        "temperature": 0.0 if greedy else section.temperature,
        "max_tokens": section.max_tokens - drawn,
        **section.truncation(),
        "stop_token_ids": list(sampling.stop_token_ids),
        "seed": None if greedy or not sampling.is_seeded else seed,
    }
