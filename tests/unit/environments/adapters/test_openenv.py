"""Sessions on a server of OpenEnv's own package."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playing import ADAPTERS, played, texts

from mindrl.environments.messages import EnvironmentAnswer

pytest.importorskip("openenv")
OPENENV = f"{ADAPTERS}.openenv:OpenEnv"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "openenv_server:app", "--port", str(port)]
    server = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert server.poll() is None, "the server has ended"
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def test_each_conversation_has_a_session_that_a_replay_brings_back(url: str) -> None:
    arguments = {"url": url, "action": "text", "columns": ["low"]}
    row = {"seed": 13, "low": 2, "other": 1}
    opening, answers = played(OPENENV, arguments, ("1", "2", "3"), row)
    assert opening == "text: guess 2 to 9\nsteps: 0"
    assert texts(answers) == ["text: no\nsteps: 1", "text: no\nsteps: 2"]
    assert answers[-1] == EnvironmentAnswer(reward=1.0, done=True)


def test_an_action_may_be_json_and_one_field_of_an_observation_be_shown(url: str) -> None:
    arguments = {"url": url, "observation": "text"}
    turns = ("3", '{"text', "[" * 2000, '{"text": "4"}', '{"text": "3"}')
    opening, answers = played(OPENENV, arguments, turns, {"seed": 3})
    assert opening == "guess 0 to 9"
    assert texts(answers) == [*["An action is a JSON object."] * 3, "no"]
    assert answers[-1].done


def test_an_action_that_the_server_refuses_fails_the_conversation(url: str) -> None:
    with pytest.raises(AssertionError, match="RuntimeError: step: "):
        played(OPENENV, {"url": url}, ('{"word": "4"}',))
