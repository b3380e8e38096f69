"""How the server of a replica is started: its command, its token, who reaches it."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError
from mindrl.launch.engine_server import configuration_text, server_command, server_environment
from mindrl.platform import device_engine
from mindrl.platform.device import PLATFORMS

MakeConfig = Callable[..., RunConfig]
CPU = PLATFORMS["cpu"]
HERE = "http://127.0.0.1:8000"


@pytest.fixture
def config(run_config: MakeConfig, tmp_path: Path) -> RunConfig:
    (tmp_path / "token").write_text("of-this-run\n", "utf-8")
    return run_config(
        Path("model"),
        {
            "rl_config.use_integrated_worker": False,
            "rl_config.rollout_resource.num_npus": 4,
            "generate_config.infer_tensor_parallel_size": 2,
            "generate_config.servers": ["http://127.0.0.1:8000", "http://localhost:8001"],
            "generate_config.server_token_file": str(tmp_path / "token"),
        },
    )


def test_a_server_has_the_engine_of_the_run_at_its_own_address(config: RunConfig) -> None:
    command = server_command(config, CPU, "http://localhost:8001")
    given = dict(pairwise(command))
    assert (given["--host"], given["--port"]) == ("localhost", "8001")
    assert given["--model"] == "model"
    assert given["--tensor-parallel-size"] == "2"
    assert given["--max-model-len"] == "64"
    assert given["--kv-cache-memory-bytes"] == str(16 << 20)
    assert given["--worker-extension-cls"] == "mindrl.launch.server_extension.InwardWeights"
    switches = {"--enforce-eager", "--enable-prefix-caching", "--skip-tokenizer-init"}
    assert switches | {"--no-enable-expert-parallel", "--no-trust-remote-code"} < {*command}
    assert "--gpu-memory-utilization" not in command
    assert json.loads(given["--attention-config"]) == {"backend": "CPU_MLA"}


def test_a_server_is_told_that_its_weights_will_change_where_the_plugin_asks_for_it(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--additional-config" not in server_command(config, CPU, HERE)
    monkeypatch.setattr(device_engine, "version", lambda _: "0.30.0")
    given = dict(pairwise(server_command(config, PLATFORMS["npu"], HERE)))
    assert json.loads(given["--additional-config"]) == {"rl_config": {"enabled": True}}


def test_the_token_is_in_the_environment_alone(config: RunConfig, tmp_path: Path) -> None:
    environment = server_environment(config, CPU)
    assert environment["VLLM_API_KEY"] == "of-this-run"
    assert not any("of-this-run" in each for each in server_command(config, CPU, HERE))
    (tmp_path / "token").write_text(" \n", "utf-8")
    with pytest.raises(ConfigError, match=r"server_token_file=.*token is empty"):
        server_environment(config, CPU)
    (tmp_path / "token").unlink()
    with pytest.raises(ConfigError, match=r"token cannot be read"):
        server_environment(config, CPU)


def test_a_server_that_others_could_command_is_not_started_unasked(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match=r"0.0.0.0:8000 is not a loopback address"):
        server_command(config, CPU, "http://0.0.0.0:8000")
    asked = replace(config.generate_config, servers_are_remote=True)
    command = server_command(replace(config, generate_config=asked), CPU, "http://0.0.0.0:8000")
    assert command[command.index("--host") + 1] == "0.0.0.0"


def test_a_server_reads_the_configuration_as_it_was_written(config: RunConfig) -> None:
    assert load_run_config(json.loads(configuration_text(config))) == config


def test_a_server_of_another_engine_is_not_ours_to_start(config: RunConfig) -> None:
    other = replace(config.generate_config, backend="sglang:d2t2")
    with pytest.raises(ConfigError, match="sglang:d2t2: sglang starts its own servers"):
        server_command(replace(config, generate_config=other), CPU, HERE)
