"""Agents in their process: their calls, results, limits and losses."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from scripted_engine import OWNER, STEP, Engine, made_routes

from mindrl.agents.host import AgentEnding, AgentHost
from mindrl.agents.runner_process import AgentSpec
from mindrl.environments.host import Key
from mindrl.errors import ConfigError, EnvironmentFailedError

AGENTS = str(Path(__file__).with_name("agents.py"))
KEY = Key(OWNER, 3, 0)
ROW = {"question": "2+2=?"}
Start = Callable[..., AgentHost]


@pytest.fixture
def start() -> Iterator[Start]:
    hosts = []

    def begin(agent: str, **given: Any) -> AgentHost:
        hosts.append(AgentHost(AgentSpec(agent=f"{AGENTS}:{agent}", **given), made_routes()))
        return hosts[-1]

    yield begin
    for host in hosts:
        host.close()


def ended(host: AgentHost, count: int = 1) -> list[AgentEnding]:
    """Answer calls until a number of agents has ended; return them by their keys."""
    engine = Engine(host)
    found: list[AgentEnding] = []
    ends = time.monotonic() + 60
    while len(found) < count and time.monotonic() < ends:
        found += host.endings(OWNER)
        time.sleep(0.01)
    engine.stop()
    return sorted(found, key=lambda each: each.key)


def test_a_plain_agent_asks_over_http_and_returns_a_reward(start: Start) -> None:
    host = start("plain")
    host.begin(KEY, 11, ROW)
    (found,) = ended(host)
    assert (found.key, found.error, len(found.calls)) == (KEY, "", 2)
    first, second = found.calls
    whole = (*first.prompt_ids, *first.token_ids)
    assert second.prompt_ids[: len(whole)] == whole
    assert (first.step, second.step) == (STEP, STEP)
    assert found.reward == len("100 letters")


def test_an_async_agent_has_several_open_calls_and_returns_a_dictionary(start: Start) -> None:
    host = start("asked_at_once")
    host.begin(KEY, 11, ROW)
    found = []
    while len(found) < 4:
        found += host.requests(OWNER, 60.0)
    assert sorted(each.call_number for each in found) == [0, 1, 2, 3]
    for each in reversed(found):
        host.reply(each.key, each.call_number, [5, each.call_number], [-1.0, -2.0], STEP, "stop")
    assert host.requests(OWNER, 60.0) == []
    (ending,) = host.endings(OWNER)
    assert [call.token_ids for call in ending.calls] == [(5, 0), (5, 1), (5, 2), (5, 3)]
    assert (ending.reward, ending.error) == (4.0, "")


@pytest.mark.parametrize(
    ("agent", "do", "reward", "error"),
    [
        ("seeded", None, 11.0, ""),
        ("seeded", "nothing", 0.0, ""),
        ("seeded", "print", 11.0, ""),
        ("seeded", "raise", 0.0, "agents.py"),
        ("seeded", "raise", 0.0, "ValueError: bad luck"),
        ("seeded", "exit", 0.0, "SystemExit: 3"),
        ("seeded", "inf", 0.0, "need a finite number"),
        ("seeded", "1e300", 0.0, "the agent returned 1e+300; need a finite number of at most"),
        ("seeded", "array", 2.5, ""),
        ("seeded", "sleep", 0.0, "it took more than 3 s"),
        ("seeded", "cancel", 0.0, "it cancelled itself"),
        ("broken", "exit", 0.0, "SystemExit: 3"),
        ("broken", "stop iteration", 0.0, "StopIteration"),
        ("broken", "sleep", 0.0, "it took more than 3 s"),
        ("plain", None, 0.0, "KeyError: 'question'"),
    ],
)
def test_an_agent_that_fails_is_named_and_others_finish(
    start: Start, agent: str, do: str | None, reward: float, error: str
) -> None:
    host = start(agent, seconds=3.0 if do == "sleep" else 60.0)
    host.begin(KEY, 11, {"do": do})
    (found,) = ended(host)
    assert found.reward == reward
    assert error in found.error
    assert bool(found.error) == bool(error)
    if agent != "plain":
        host.begin(Key(OWNER, 4, 0), 12, {})
        assert ended(host)[0].error == ""


def test_agents_wait_for_others_of_their_owner(start: Start) -> None:
    host = start("plain", conversations=2)
    keys = [Key(OWNER, 0, at) for at in range(5)]
    for key in keys:
        host.begin(key, 0, ROW)
    host.begin(Key("evaluation", 0, 0), 0, ROW)
    found = []
    while len(found) < 2:
        found += host.requests(OWNER, 60.0)
    assert host.requests(OWNER, 0.3) == []
    assert len(host.requests("evaluation", 60.0)) == 1
    host.end_all("evaluation")
    for each in found:
        host.reply(each.key, each.call_number, [5], [-1.0], STEP, "stop")
    assert [each.key for each in ended(host, 5)] == keys


def test_an_agent_that_is_ended_gives_no_ending_and_its_call_is_refused(start: Start) -> None:
    host = start("plain")
    host.begin(KEY, 0, ROW)
    (asked,) = host.requests(OWNER, 60.0)
    host.end(KEY)
    host.end(KEY)
    host.reply(KEY, asked.call_number, [5], [-1.0], STEP, "stop")
    host.begin(KEY, 0, ROW)
    (found,) = ended(host)
    assert (found.error, len(found.calls)) == ("", 2)


def test_a_lost_process_fails_its_agents_once_and_ends_the_run_the_second_time(
    start: Start,
) -> None:
    host = start("broken", conversations=1)
    keys = [Key(OWNER, 0, at) for at in range(2)]
    host.begin(keys[0], 0, {"do": "kill"})
    host.begin(keys[1], 0, {})
    first, second = ended(host, 2)
    assert first.error.endswith("the process of the agents has ended")
    assert (second.error, second.reward) == ("", 1.0)
    for at in (2, 3):
        host.begin(Key(OWNER, 0, at), 0, {"do": "kill"})
    with pytest.raises(EnvironmentFailedError, match="for the second time"):
        ask_on(host)


def ask_on(host: AgentHost) -> None:
    while True:
        host.requests(OWNER, 60.0)
        host.endings(OWNER)


def test_a_process_that_hangs_is_replaced(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindrl.agents.host._GRACE_SECONDS", 1.0)
    host = start("seeded", seconds=1.0)
    host.begin(KEY, 0, {"do": "block"})
    (found,) = ended(host)
    assert found.error.endswith("the process of the agents hangs")
    host.begin(KEY, 7, {})
    assert ended(host)[0].reward == 7.0


def test_no_process_of_an_agent_outlives_the_host(start: Start) -> None:
    host = start("broken")
    host.begin(KEY, 0, {"do": "child"})
    child = int(ended(host)[0].reward)
    assert psutil.pid_exists(child)
    host.close()
    assert not psutil.pid_exists(child)


def test_an_agent_runs_in_the_given_interpreter_without_this_package(start: Start) -> None:
    host = start("python", interpreter=sys.executable)
    host.begin(KEY, 0, {})
    assert ended(host)[0].reward == sys.version_info[1]


@pytest.mark.parametrize(
    ("agent", "given", "error"),
    [
        ("missing", {}, "has no attribute 'missing'"),
        ("not_a_function", {}, "need a function"),
        ("plain", {"interpreter": "/no/python"}, "must be the path of a Python interpreter"),
        ("plain", {"interpreter": "/bin/false"}, "/bin/false did not import it in time, or ended"),
    ],
)
def test_an_agent_that_cannot_be_used_is_refused_at_once(
    start: Start, agent: str, given: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        start(agent, **given)
