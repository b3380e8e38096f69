"""Rewards of a server on the loopback address, in the processes of a run."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import broken_server
import pytest
from broken_server import Fault, breaking

from mindrl.batch.prompts import Prompt
from mindrl.config.rl import RLConfig
from mindrl.errors import ConfigError
from mindrl.rewards.inputs import Answered, RewardInputs
from mindrl.rewards.remote import RemoteReward
from mindrl.rewards.scorer import RewardScorer, try_rewards
from mindrl.rewards.scores import Scores

PROMPT = Prompt(uid=0, token_ids=(7,), text="3+4", answer="7", source="sums")


class Judge(ThreadingHTTPServer):
    """Answers by what the response says, and writes down what it is asked."""

    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.tries: Counter[str] = Counter()
        self.tokens: set[str | None] = set()
        self.lock, self.under_way, self.most = threading.Lock(), 0, 0
        self.meeting = threading.Barrier(40)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/rate"


class Handler(BaseHTTPRequestHandler):
    server: Judge

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        judge, text = self.server, asked["response"]
        with judge.lock:
            judge.under_way += 1
            judge.most = max(judge.most, judge.under_way)
            judge.asked.append(asked)
            judge.tokens.add(self.headers["Authorization"])
            judge.tries[text] += 1
        if text == "met":
            with suppress(threading.BrokenBarrierError):
                judge.meeting.wait(4.0)
        else:
            time.sleep(5.0 if text == "slow" else 0.1)
        with judge.lock:
            judge.under_way -= 1
        flaky = text == "flaky" and judge.tries[text] < 3
        code = {"bad": 400}.get(text, 503 if flaky else 200)
        answer = {"text": b"fine", "number": b"0.25"}.get(text, b'{"score": 0.5}')
        self.send_response(code)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def judge() -> Iterator[Judge]:
    with Judge() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def rated(judge: Judge, responses: list[str], **kwargs: Any) -> Scores:
    rl = RLConfig(mini_batch_size=1, verifier_function=(judge.url,), verifier_weight=(1.0,))
    answered = Answered(
        prompts=[PROMPT] * len(responses),
        groups=[0] * len(responses),
        token_ids=[()] * len(responses),
    )
    inputs = RewardInputs(kwargs={judge.url: kwargs})
    with RewardScorer(rl, inputs=inputs) as scorer:
        return scorer.score(responses, ["7"] * len(responses), ["sums"] * len(responses), answered)


def test_a_server_gets_texts_and_source_and_the_token_of_a_variable(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_TOKEN", "secret")
    scores = rated(judge, ["number"], token_variable="JUDGE_TOKEN")
    assert scores.rewards == (0.25,)
    assert judge.asked == [
        {"response": "number", "reference": "7", "prompt": "3+4", "data_source": "sums"}
    ]
    assert judge.tokens == {"Bearer secret"}


def test_as_many_requests_are_under_way_as_the_bound_says(judge: Judge) -> None:
    scores = rated(judge, [f"{n}" for n in range(12)], concurrency=3)
    assert (scores.rewards, judge.most) == ((0.5,) * 12, 3)


def test_a_bound_above_the_number_of_cores_holds_too(judge: Judge) -> None:
    scores = rated(judge, ["met"] * 40, concurrency=40)
    assert (scores.rewards, judge.most) == ((0.5,) * 40, 40)


def test_a_server_that_is_busy_is_asked_again_and_one_that_refuses_is_not(judge: Judge) -> None:
    scores = rated(judge, ["flaky", "bad", "text", "fine"])
    assert scores.rewards == (0.5, 0.0, 0.0, 0.5)
    assert judge.tries == {"flaky": 3, "bad": 1, "text": 1, "fine": 1}
    [failure] = scores.failures
    assert (failure.kind, failure.count) == ("exception", 2)
    assert failure.first.detail.startswith("'OSError: no score after 1 tries: HTTP 400")
    assert failure.first.detail.endswith(f"({judge.url})")


def test_a_server_that_is_slow_costs_its_own_time_alone(judge: Judge) -> None:
    started = time.monotonic()
    scores = rated(judge, ["slow", "fine"], seconds=1.0)
    assert scores.rewards == (0.0, 0.5)
    # A second of waiting, and the start of the processes on a busy machine.
    assert time.monotonic() - started < 15.0


def test_a_server_that_is_not_there_is_found_by_the_trial_call() -> None:
    with Judge() as gone:
        url = gone.url
    with pytest.raises(
        ConfigError, match=r"no score after 4 tries: URLError: .*Connection refused"
    ):
        try_rewards("rl_config.verifier_function", [url], [PROMPT], RewardInputs(), seconds=5)


def test_a_variable_that_is_not_set_is_named() -> None:
    inputs = RewardInputs(kwargs={"http://127.0.0.1:9/": {"token_variable": "NO_SUCH_TOKEN"}})
    with pytest.raises(ConfigError, match="the environment variable NO_SUCH_TOKEN is not set"):
        try_rewards("rl_config.verifier_function", [*inputs.kwargs], [PROMPT], inputs, seconds=5)


DRIPS = (broken_server.drip_header, broken_server.drip_body, broken_server.drip_announced_body)
BREAKING = {
    "reset": (broken_server.reset, 200),
    "cut in a number": (broken_server.cut, 200),
    "stall": (broken_server.stall, 200),
    "broken chunk": (broken_server.broken_chunk, 200),
    "half a chunk": (broken_server.half_a_chunk, 200),
    "busy, and reset in its words": (broken_server.reset, 503),
    "refusal, and reset in its words": (broken_server.reset, 400),
    "refusal that stalls": (broken_server.stall, 400),
    "drip in a header": (broken_server.drip_header, 200),
    "drip in the text": (broken_server.drip_body, 200),
    "drip in a text of known length": (broken_server.drip_announced_body, 200),
    "drip in the words of a refusal": (broken_server.drip_body, 400),
}
"""Each sends `0.5`, or blanks, before it breaks: neither is a score."""


def _asked(name: str) -> str:
    """Return what is wrong with how a server that breaks is taken; empty where nothing is."""
    act, status = BREAKING[name]
    fault = Fault(act, status)
    with breaking(fault) as url:
        began = time.monotonic()
        reward = RemoteReward(url, seconds=2.0, tries=2)
        try:
            said = repr(asyncio.run(reward("3", "4", "3+4", "")))
        except OSError as error:
            said = str(error)
        took = time.monotonic() - began
    endless = act in (broken_server.stall, *DRIPS)
    tries = 1 if status == 400 or endless else 2
    if said.startswith(f"no score after {tries} tries: ") and fault.asked == tries and took < 6.0:
        return ""
    return f"{name}: {fault.asked} of {tries} tries, {took:.1f} s, {said}"


def test_a_server_that_breaks_off_or_drips_costs_its_time_and_gives_no_score() -> None:
    with ThreadPoolExecutor(len(BREAKING)) as pool:
        found = [*pool.map(_asked, BREAKING)]
    assert [each for each in found if each] == []
