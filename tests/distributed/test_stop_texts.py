"""Texts that end a response: the tokens and log-probs before them are those of one without."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from rollout_messages import Question
from transformers import AutoTokenizer

from mindrl.batch.rollouts import Responses
from mindrl.config.generate import SamplingConfig
from mindrl.rollout.engine import Sampling

pytestmark = pytest.mark.distributed

SECTION = SamplingConfig(max_tokens=24)
SUMS = ("12+35=?", "47+38=?", "70+10=?")


def test_a_response_ends_behind_the_token_that_completes_a_text(
    forked_workers: ForkedWorkers, tiny_model: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    chats = [[{"role": "user", "content": each}] for each in SUMS]
    prompts = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    free = Question(
        prompts=tuple(map(tuple, prompts)),
        sampling=Sampling(section=SECTION, stop_token_ids=(tokenizer.eos_token_id,)),
        seeds=(1, 2, 3),
    )
    # One is made of ordinary tokens, one is a special token that the engine would leave out.
    asked = [free] + [
        replace(free, sampling=replace(free.sampling, section=replace(SECTION, stop=(text,))))
        for text in ("{", "<|im_end|>")
    ]
    (found,) = forked_workers.run(
        "stop_text_probe:answered", str(tiny_model), ("{", "<|im_end|>"), asked
    )
    whole, cut, turn = found[:3]
    for at_once, in_rounds in zip(found[:3], found[3:], strict=True):
        assert torch.equal(at_once.token_ids_N, in_rounds.token_ids_N)
        assert torch.equal(at_once.logprobs_N, in_rounds.logprobs_N)
        assert torch.equal(at_once.finished_B, in_rounds.finished_B)
    assert torch.equal(whole.token_ids_N, turn.token_ids_N)
    shorter = 0
    for (ids_N, logprobs_N), (cut_N, cut_logprobs_N) in zip(_rows(whole), _rows(cut), strict=True):
        length = len(cut_N)
        assert torch.equal(ids_N[:length], cut_N)
        assert torch.equal(logprobs_N[:length], cut_logprobs_N)
        before, last = tokenizer.decode(cut_N[:-1]), tokenizer.decode(cut_N)
        assert "{" not in before
        if "{" in tokenizer.decode(ids_N):
            assert "{" in last
            shorter += length < len(ids_N)
    assert shorter, "some of the answers have a box"
    assert cut.finished_B.all()


def _rows(found: Responses) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [*found.each()]
