"""Tools of an MCP server: listed, called, replayed, and ended with their conversation."""

import json
import sys
import time
from pathlib import Path

import psutil
import pytest
from playing import ADAPTERS, KEY, LIMITS, call, played, schemas, texts
from program import is_running

from mindrl.config.environment import EnvironmentConfig
from mindrl.environments.adapters.mcp import McpTools
from mindrl.environments.host import EnvironmentHost
from mindrl.environments.messages import EnvironmentAnswer, Failed, Opening
from mindrl.environments.process import EnvironmentSpec
from mindrl.environments.tools import tool_schemas
from mindrl.errors import ConfigError

SERVER = [sys.executable, str(Path(__file__).with_name("counting_server.py"))]
MCP = f"{ADAPTERS}.mcp:McpTools"


def test_the_tools_are_those_that_the_server_lists() -> None:
    functions = [each["function"] for each in schemas(MCP, {"command": SERVER})]
    found = {each["name"]: each for each in functions}
    assert set(found) == {"add", "fail", "end", "draw"}
    assert found["add"]["description"].startswith("Add two numbers")
    assert found["add"]["parameters"]["properties"]["a"]["type"] == "integer"
    assert found["add"]["parameters"]["required"] == ["a", "b"]


class Counted(McpTools):
    """Rewards by the server's state."""

    def get_reward(self) -> float:
        return float(self.call_tool("add", {"a": 0, "b": 0}).split()[-1])


@pytest.mark.nightly
def test_a_server_has_its_state_in_a_conversation_and_a_replay_brings_it_back() -> None:
    turns = [call("add", a=1, b=2), call("add", a=2, b=5), call("fail"), call("add", a="x"), "done"]
    opening, answers = played(f"{__file__}:Counted", {"command": SERVER}, turns)
    assert opening is None
    found = texts(answers)
    assert found[:2] == ["3 in call 1", "7 in call 2"]
    assert "fail" in json.loads(found[2])["error"]
    assert "add" in json.loads(found[3])["error"]
    assert answers[-1] == EnvironmentAnswer(reward=3.0, done=True)


def begun(host: EnvironmentHost) -> None:
    host.begin(KEY, 7, {})
    assert host.answers(KEY.owner, 120.0) == [(KEY, Opening())]


@pytest.mark.nightly
def test_a_tool_that_cannot_be_repeated_fails_the_conversation() -> None:
    with pytest.raises(AssertionError, match="answered otherwise when it was replayed"):
        played(MCP, {"command": SERVER}, [call("draw"), call("add", a=1, b=2)])


@pytest.mark.nightly
def test_a_server_that_ends_fails_its_conversation() -> None:
    host = EnvironmentHost(
        spec=EnvironmentSpec(environment=MCP, arguments={"command": SERVER}), limits=LIMITS
    )
    try:
        begun(host)
        host.act(KEY, call("end"))
        ((_, found),) = host.answers(KEY.owner, 60.0)
        assert found == Failed(reason="EnvironmentFailedError: the MCP server has ended")
    finally:
        host.close()


@pytest.mark.nightly
@pytest.mark.parametrize("has_ended", [False, True])
def test_a_conversation_ends_with_its_server_and_what_the_server_started(has_ended: bool) -> None:
    before = {*psutil.Process().children(recursive=True)}
    command = [*SERVER, "--with-child"]
    host = EnvironmentHost(
        spec=EnvironmentSpec(environment=MCP, arguments={"command": command}), limits=LIMITS
    )
    try:
        imported = {*psutil.Process().children(recursive=True)}
        begun(host)
        host.act(KEY, call("add", a=1, b=1))
        assert isinstance(host.answers(KEY.owner, 60.0)[0][1], EnvironmentAnswer)
        started = {*psutil.Process().children(recursive=True)} - imported
        assert len(started) == 3, "the conversation, its server, and the server's child"
        if has_ended:
            (conversation,) = (each for each in started if each.parent() not in started)
            while conversation.status() != "zombie":
                conversation.kill()
        host.end(KEY)
        deadline = time.monotonic() + 30
        while (alive := [each for each in started if is_running(each.pid)]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.05)
        assert not alive
        assert imported - before <= {*psutil.Process().children(recursive=True)}
    finally:
        host.close()


def test_a_server_that_does_not_start_is_named() -> None:
    with pytest.raises(ConfigError, match=r"environment_config.arguments=.*cannot state its tools"):
        schemas(MCP, {"command": ["no-such-server"]})


def test_a_server_has_the_configured_time_to_list_its_tools() -> None:
    silent = [sys.executable, "-c", "import time; time.sleep(600)"]
    config = EnvironmentConfig(
        environment=MCP, arguments={"command": silent}, start_timeout_seconds=1
    )
    needed = "the server listed no tools within environment_config.start_timeout_seconds"
    with pytest.raises(ConfigError, match=needed):
        tool_schemas(config)
