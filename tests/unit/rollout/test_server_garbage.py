"""A server that answers with what no engine can have drawn: named, lost, and never trained on."""

import json
import math
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from vllm_like_server import VOCABULARY, advance_to_the_end, listening, replica_at

from mindrl.config.generate import SamplingConfig
from mindrl.errors import AnswerError, WorkerDiedError
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.source.replica_thread import Lost, is_loss

SAMPLING = Sampling(section=SamplingConfig(max_tokens=4), stop_token_ids=(1,))
REQUEST = Request(token_ids=(5, 6), drawn=1, seed=0)
Change = Callable[[dict[str, Any]], Any]


@dataclass
class Changed:
    """Says a sound answer, changed."""

    change: Change

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any] | None:  # noqa: ARG002
        choice = {
            "token_ids": [7, 8, 1],
            "logprobs": {"content": [{"logprob": each} for each in (-1.0, -2.0, -0.5)]},
            "finish_reason": "stop",
            "weight_versions": [{"version": "4"}],
        }
        name = f"generate-tokens-{body['request_id']}"
        found = self.change({"request_id": name, "choices": [choice]})
        return 200, found


def of_choice(**fields: Any) -> Change:
    def change(reply: dict[str, Any]) -> dict[str, Any]:
        reply["choices"][0] |= fields
        return reply

    return change


def content(*logprobs: Any) -> dict[str, Any]:
    return {"content": [{"logprob": each} for each in logprobs]}


GARBAGE: dict[str, tuple[Change, str]] = {
    "no JSON": (lambda _: b"<html>busy</html>", "the answer: Invalid JSON.*<html>busy"),
    "nothing": (lambda _: b"", "the answer: Invalid JSON"),
    "half of it": (lambda reply: json.dumps(reply).encode()[:-9], "the answer: Invalid JSON"),
    "a list": (lambda reply: [reply], "the answer: Input should be"),
    "other fields": (lambda _: {"text": "Hello"}, "choices: Field required"),
    "no choice": (lambda _: {"choices": []}, "choices: List should have at least 1"),
    "another's answer": (lambda reply: reply | {"request_id": "else"}, "the response to else"),
    "text for tokens": (of_choice(token_ids=["7", 8, 1]), r"token_ids.0: .* integer"),
    "a token outside": (of_choice(token_ids=[7, VOCABULARY, 1]), "100 is outside the vocabulary"),
    "a negative token": (of_choice(token_ids=[7, -1, 1]), r"token_ids.1: .*greater than or equal"),
    "a huge token": (of_choice(token_ids=[7, 1 << 70, 1]), r"token_ids.1: .*less than"),
    "an empty answer": (of_choice(token_ids=[], logprobs=content()), "a response is empty"),
    "too long": (
        of_choice(token_ids=[7, 8, 9, 1], logprobs=content(-1, -1, -1, -1)),
        "4 tokens, but the limit was 3",
    ),
    "too short": (
        of_choice(token_ids=[7, 8], logprobs=content(-1, -1), finish_reason="length"),
        "cut off at 2 of 3 tokens",
    ),
    "too few log-probs": (of_choice(logprobs=content(-1, -1)), "2 log-probs of 3 tokens"),
    "no log-probs": (of_choice(logprobs=None), "0 log-probs of 3 tokens"),
    "NaN": (of_choice(logprobs=content(-1, math.nan, -1)), r"logprob: .*finite number"),
    "infinity": (of_choice(logprobs=content(-1, -math.inf, -1)), r"logprob: .*finite number"),
    "null": (of_choice(logprobs=content(-1, None, -1)), r"logprob: .*valid number"),
    "a probability above 1": (of_choice(logprobs=content(-1, 0.5, -1)), "0.5, above 0"),
    "a probability of 0": (of_choice(logprobs=content(-1, -1e30, -1)), "-1e[+]30: the probability"),
    "an ending of its own": (of_choice(finish_reason="tired"), "finish_reason: Input should be"),
}


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_is_named_and_loses_the_server(case: str) -> None:
    change, said = GARBAGE[case]
    with listening(Changed(change)) as url:
        replica = replica_at(url)
        replica.begin([REQUEST], SAMPLING)
        invalid = rf"^replica 2 at {url}: invalid response.*: .*{said}"
        with pytest.raises(AnswerError, match=invalid):
            advance_to_the_end(replica, 1)
        # Whoever takes all back does not get it either.
        with pytest.raises(AnswerError, match=said):
            replica.take()
    # For whoever deals requests it is a replica that is lost, as one that died.
    assert is_loss(Lost(number=2, error=AnswerError()))


def test_the_same_answer_unchanged_is_taken() -> None:
    with listening(Changed(lambda reply: reply)) as url:
        replica = replica_at(url)
        replica.begin([REQUEST], SAMPLING)
        assert advance_to_the_end(replica, 1) == [0]
        assert replica.take().token_ids_N.tolist() == [7, 8, 1]


def test_a_request_that_somebody_else_takes_back_loses_the_server() -> None:
    with listening(Changed(of_choice(finish_reason="abort"))) as url:
        replica = replica_at(url)
        replica.begin([REQUEST], SAMPLING)
        with pytest.raises(WorkerDiedError, match="replica 2 aborted a request"):
            advance_to_the_end(replica, 1)


def test_a_redirection_is_a_refusal_and_takes_the_token_nowhere() -> None:
    # Without a Location urllib would refuse by itself: the status alone shows nothing. So the
    # other address is one that would have answered.
    seen: list[tuple[str, str]] = []
    with listening(Changed(lambda reply: reply), seen) as other:
        assert isinstance(other, str)

        class Elsewhere(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.rfile.readline()
                said = f"HTTP/1.0 302 Found\r\nLocation: {other}/health\r\n\r\n"
                self.wfile.write(said.encode())

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Elsewhere) as server:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            client = replica_at(f"http://127.0.0.1:{server.server_address[1]}").client
            with pytest.raises(WorkerDiedError, match="HTTP 302"):
                client.post("/x", seconds=5)
            assert not client.is_up()
            server.shutdown()
    assert seen == []


def test_a_server_that_is_certain_of_all_tokens_is_lost_behind_512_of_them() -> None:
    with listening(Changed(of_choice(logprobs=content(0.0, -0.0, 0.0)))) as url:
        replica = replica_at(url)
        replica.begin([REQUEST] * 200, SAMPLING)
        said = rf"^replica 2 at {url}: invalid response: the log-probs of 513 tokens in a row"
        with pytest.raises(AnswerError, match=said):
            advance_to_the_end(replica, 200)
        assert sum(each.is_returned for each in replica.in_flight) == 170
        replica.close()
