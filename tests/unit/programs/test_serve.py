"""Options of a server, and refusals."""

import shutil
import socket
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from mindrl.programs import serve as module
from mindrl.programs.entry import start


class Became(NamedTuple):
    command: Sequence[str]
    environment: dict[str, str]


class Starts:
    """Notes what this process would have become."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.became: list[Became] = []
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(module, "become", lambda *given: self.became.append(Became(*given)))

    def __call__(self, *arguments: object) -> int | None:
        self.monkeypatch.setattr("sys.argv", ["serve.py", *map(str, arguments)])
        return start("serve")


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    return Starts(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "it's a model"
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 300}')
    return folder


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        return number


def test_a_model_is_served_on_loopback_with_a_token_that_is_shown_nowhere(
    starts: Starts, model: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    starts(model, "--device", "cpu", "--port", port, "--", "--max-num-seqs", "3")
    ((command, environment),) = starts.became
    given = dict(pairwise(command))
    assert (given["--host"], given["--port"]) == ("127.0.0.1", str(port))
    assert (given["--model"], given["--served-model-name"]) == (str(model), "it's a model")
    assert (given["--max-model-len"], given["--max-num-seqs"]) == ("300", "3")
    assert command[1:4] == ["-m", "mindrl.platform.guard", "--remove"]
    token, said = environment["VLLM_API_KEY"], capsys.readouterr().out
    assert len(token) == 64
    assert token not in f"{command}{said}"
    # The switch that opens routes without a token.
    assert "VLLM_SERVER_DEV_MODE" not in environment
    (file,) = {Path(word.rstrip(')"')) for word in said.split() if ".token" in word}
    assert file.read_text() == token
    assert file.stat().st_mode & 0o077 == 0
    # The guard removes the folder with the sockets and the token.
    assert (command[4], environment["VLLM_RPC_BASE_PATH"]) == (str(file.parent),) * 2
    shutil.rmtree(file.parent)
    assert f"http://127.0.0.1:{port}/v1/chat/completions" in said


def test_what_cannot_be_served_is_said(
    starts: Starts, model: Path, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").write_text("\n")
    refused = {
        (): "MODEL_OR_RUN is missing",
        (tmp_path,): "has no config.json",
        (model, "a=b"): "a=b: key=value needs --config-name of a run",
        (model, "--max-length", 301): "the model's limit is 300 tokens",
        (model, "--token-file", tmp_path / "empty"): "is empty",
        (model, "--token-file", tmp_path / "none"): "cannot be read",
        ("--config-name", "grpo_tiny_cpu", "--", "--max-num-seqs", 3): "a replica takes no vLLM",
        (model, "--host", "\u00e9" * 70): "encoding of hostname failed",
        ("--config-name", "grpo_tiny_cpu"): "--replica 0: generate_config.servers has no addresses",
        (model, "--replica", 0): "--replica has an effect only with --config-name; leave it out",
        (model, "--config-dir", "configs"): "--config-dir has an effect only with --config-name",
        ("--config-name", "grpo_tiny_cpu", "--port", 8000): "--port has an effect only without",
        ("--config-name", "grpo_tiny_cpu", "--seed", 1): "--seed has an effect only without",
        ("--config-name", "grpo_tiny_cpu", "--best"): "--best has an effect only without",
    }
    for arguments, reason in refused.items():
        assert starts(*arguments) == 2, arguments
        assert reason in " ".join(capsys.readouterr().err.split()), arguments
    with socket.create_server(("127.0.0.1", port)):
        assert starts(model, "--port", port) == 2
    assert "already in use" in capsys.readouterr().err
    assert starts.became == []


def test_a_replica_of_a_run_takes_changes_where_a_model_would_stand(
    starts: Starts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("of-this-run")
    starts(
        "rl_config.use_integrated_worker=false",
        *("--config-name", "grpo_tiny_cpu", "--replica", 1),
        "rl_config.rollout_resource.num_npus=2",
        "generate_config.servers=['http://127.0.0.1:8000','http://127.0.0.1:8001']",
        f"generate_config.server_token_file={tmp_path / 'token'}",
    )
    ((command, environment),) = starts.became
    assert dict(pairwise(command))["--port"] == "8001"
    assert environment["VLLM_API_KEY"] == "of-this-run"
    assert capsys.readouterr().out == "replica 1 listens on http://127.0.0.1:8001\n"


def test_a_replica_of_a_run_with_a_file_of_servers_listens_where_it_is_told(
    starts: Starts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("token", "servers.txt"):
        (tmp_path / name).write_text("of-this-run" if name == "token" else "")
    given = (
        *("--config-name", "grpo_tiny_cpu"),
        "rl_config.use_integrated_worker=false",
        "rl_config.rollout_resource.num_npus=2",
        f"generate_config.servers_file={tmp_path / 'servers.txt'}",
        f"generate_config.server_token_file={tmp_path / 'token'}",
    )
    assert starts(*given) == 2
    assert "--address is missing, such as http://127.0.0.1:8000" in capsys.readouterr().err
    assert starts(*given, "--address", "http://10.0.0.7:8000") == 2
    assert "http://10.0.0.7:8000 is not a loopback address" in capsys.readouterr().err
    assert starts(*given, "--address", "http://127.0.0.1:8002", "--replica", 0) == 2
    assert "--replica needs generate_config.servers" in capsys.readouterr().err
    starts(*given, "--address", "http://127.0.0.1:8002")
    ((command, _),) = starts.became
    assert dict(pairwise(command))["--port"] == "8002"
    assert capsys.readouterr().out == "a replica listens on http://127.0.0.1:8002\n"
    # Addresses of the configuration have numbers.
    assert starts("--config-name", "grpo_tiny_cpu", "--address", "http://127.0.0.1:8002") == 2
    assert "--address needs generate_config.servers_file" in capsys.readouterr().err
