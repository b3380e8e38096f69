"""A teacher on a server: its log-probs at the right places, and answers that are refused."""

import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from queue import Queue
from threading import Barrier, Event, Lock
from typing import Any

import pytest
import torch
from broken_server import Fault, breaking, stall
from transformers import AutoTokenizer
from vllm_like_server import listening

from mindrl.batch.sequences import Sequences
from mindrl.config.run import RunConfig
from mindrl.config.teacher import Candidates
from mindrl.errors import AnswerError, ConfigError, WorkerDiedError
from mindrl.launch.served_teacher import served_teacher
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.rollout.http import client as client_module
from mindrl.rollout.http.answers import read
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.http.teacher import ServedTeacher

VOCABULARY = 12
BATCH = Sequences(
    tokens_BT=torch.tensor([[3, 5, 7, 9, 11], [2, 4, 6, 0, 0]]),
    lengths_B=torch.tensor([5, 3]),
    response_mask_BT=torch.tensor(
        [[False, False, True, True, True], [False, True, True, False, False]]
    ),
)


def distribution(before: int) -> torch.Tensor:
    """Return the log-probs after a token, which the server and the test compute alike."""
    return torch.arange(VOCABULARY).mul(before + 1).remainder(7).double().log_softmax(dim=0)


@dataclass
class Teaching:
    """Answers as vLLM's server: the most probable tokens, and the one in the prompt."""

    changes: dict[str, Any] = field(default_factory=dict)
    """Log-prob by the name of a token, in place of its own; None leaves it out."""
    cuts: int = 0
    """Positions that the answer lacks."""
    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        if path == "/detokenize":
            return 200, {"prompt": " ".join(f"t{each}" for each in body["tokens"])}
        assert path == "/v1/completions"
        self.asked.append(body)
        tokens, number = body["prompt"], body["prompt_logprobs"]
        after = [self.scored(*each, number) for each in pairwise(tokens)]
        found = [None, *after][: len(tokens) - self.cuts]
        return 200, {"id": "cmpl-1", "choices": [{"text": "x", "prompt_logprobs": found}]}

    def scored(self, before: int, token: int, number: int) -> dict[str, Any]:
        scores = distribution(before)
        best = scores.argsort(descending=True, stable=True).tolist()
        found = {
            str(each): {"logprob": scores[each].item(), "rank": best.index(each) + 1}
            for each in [token, *best[:number]]
        }
        for name, value in self.changes.items():
            found.pop(name, None)
            if value is not None:
                found[name] = {"logprob": value, "rank": 1}
        return found


def teacher_at(url: str, number: int = 0, seconds: float = 20.0) -> ServedTeacher:
    return ServedTeacher(
        client=ServerClient(url=url, token="secret", name="the teacher"),
        candidates=Candidates(number=number, below=VOCABULARY) if number else None,
        seconds=seconds,
    )


@pytest.mark.parametrize("number", [0, 3])
def test_each_response_token_gets_its_log_prob_after_the_tokens_before_it(number: int) -> None:
    seen: list[tuple[str, str]] = []
    engine = Teaching()
    with listening(engine, seen, token="secret") as url:
        found = teacher_at(url, number)(BATCH)
    rows = [BATCH.tokens_BT[row, : BATCH.lengths_B[row]].tolist() for row in range(2)]
    assert sorted(each["prompt"] for each in engine.asked) == sorted(rows)
    assert {each["prompt_logprobs"] for each in engine.asked} == {number}
    for at, (row, place) in enumerate(BATCH.response_mask_BT.nonzero().tolist()):
        scores = distribution(rows[row][place - 1]).float()
        assert found.logprobs_BT[row, place] == pytest.approx(scores[rows[row][place]].item())
        if number:
            assert found.likely is not None
            logprobs_K = found.likely.logprobs_KR[:, at]
            torch.testing.assert_close(logprobs_K, scores[found.likely.ids_KR[:, at]])
            torch.testing.assert_close(logprobs_K, scores.topk(number).values)
    assert not found.logprobs_BT[~BATCH.response_mask_BT].any()
    assert (found.likely is None) == (number == 0)


def test_the_limit_of_an_answer_grows_with_its_tokens_and_candidates() -> None:
    with listening(Teaching()) as url:
        teacher = teacher_at(url, 3)
        small = replace(teacher, client=replace(teacher.client, most_bytes=1))
        assert small(BATCH).logprobs_BT.equal(teacher(BATCH).logprobs_BT)


def test_one_answer_at_a_time_is_parsed_because_each_takes_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsing, alone = Lock(), list[bool]()

    def parse(form: type[Any], text: bytes) -> Any:
        alone.append(is_first := parsing.acquire(blocking=False))
        # Time for the other answers to arrive.
        time.sleep(0.02)
        if is_first:
            parsing.release()
        return read(form, text)

    monkeypatch.setattr(client_module, "read", parse)
    with listening(Teaching()) as url:
        teacher_at(url, 3)(BATCH.rows(torch.tensor([0, 1] * 4)))
    assert alone == [True] * 8


def test_the_text_of_tokens_is_that_of_the_server() -> None:
    with listening(Teaching()) as url:
        assert teacher_at(url).decoded([3, 8]) == "t3 t8"


REFUSED = {
    "a token is missing": (Teaching(changes={"7": None}), 0, "no log-prob of token 7 at"),
    "a probability above 1": (Teaching(changes={"7": 0.5}), 0, "a log-prob is 0.5, above 0"),
    "NaN": (Teaching(changes={"7": math.nan}), 0, "7.logprob: Input should be a finite number"),
    "text": (Teaching(changes={"7": "-1"}), 0, "7.logprob: Input should be a valid number"),
    "too few positions": (Teaching(cuts=1), 0, "log-probs of [35] tokens"),
    "too few candidates": (Teaching(changes={"0": None}), 11, "1[01] of 11 candidates at position"),
    "a name that is no token": (Teaching(changes={"x": -0.1}), 0, "should match pattern"),
    "a token outside": (Teaching(changes={"90": -0.1}), 3, "candidate 90 is outside .* 12 tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_answer_that_no_teacher_gives_is_refused_with_the_server(name: str) -> None:
    engine, number, words = REFUSED[name]
    with listening(engine) as url, pytest.raises(AnswerError, match=words) as caught:
        teacher_at(url, number)(BATCH)
    assert str(caught.value).startswith(f"the teacher at {url}: invalid response to /v1/")


def test_a_server_that_stalls_is_named_after_its_time() -> None:
    fault = Fault(stall)
    with breaking(fault) as url, pytest.raises(WorkerDiedError) as caught:
        teacher_at(url, seconds=0.2)(BATCH.rows(torch.tensor([0])))
    assert fault.asked == 3
    assert str(caught.value) == (
        f"the teacher at {url} did not respond to /v1/completions: timed out: no complete response "
        "within 0.2 s"
    )


def test_a_refused_sequence_ends_the_open_requests_of_the_others() -> None:
    both, left = Barrier(2), Queue[bytes]()

    def answer(connection: socket.socket, status: int, over: Event) -> None:
        del status, over
        if both.wait(20) == 0:
            connection.sendall(b"HTTP/1.1 400 Said\r\nContent-Length: 0\r\n\r\n")
        else:
            left.put(connection.recv(1))

    with breaking(Fault(answer)) as url:
        with pytest.raises(WorkerDiedError, match="HTTP 400"):
            teacher_at(url)(BATCH)
        assert left.get(timeout=10) == b""


@dataclass
class Decoding:
    """Decodes tokens, each as the one `shift` after it."""

    tokenizer: Any
    shift: int

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        assert path == "/detokenize"
        moved = [each + self.shift for each in body["tokens"]]
        return 200, {"prompt": self.tokenizer.decode(moved)}


def test_a_server_with_another_tokenizer_is_refused_when_the_run_starts(
    tiny_model: Path, run_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)

    def started(shift: int) -> ServedTeacher | None:
        with listening(Decoding(tokenizer, shift), token="secret") as url:
            given = {"teacher_config.url": url, "teacher_config.token_file": str(file)}
            return served_teacher(unordered_shardings(run_config(tiny_model, given)).ordered.plan)

    teacher = started(0)
    assert teacher is not None
    assert teacher.candidates is None
    with pytest.raises(ConfigError, match=r"needs the tokenizer in .*: the server reads"):
        started(1)
