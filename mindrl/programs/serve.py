"""Start a vLLM server, for a model or as a replica of a run: `mindrl serve`."""

import argparse
import json
import os
import secrets
import shlex
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from mindrl.config.server_address import is_loopback
from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.launch.engine_server import server_command, server_environment
from mindrl.launch.model_server import model_server_command, model_server_environment
from mindrl.observability.regular_files import read_regular_text
from mindrl.observability.terminal import note, say
from mindrl.platform.device import choose_platform
from mindrl.platform.environment import become
from mindrl.platform.scratch import ENGINE_SOCKETS, Scratch
from mindrl.preflight.checks import refuse
from mindrl.programs.arguments import count, parser_of
from mindrl.programs.exits import exit_code
from mindrl.programs.plan_options import asked_config
from mindrl.programs.speaker_options import add_speaker_options, asked_speaker
from mindrl.programs.train import require_rollout_engine

_FOLDERS = "mindrl-server-"
"""Prefix of folders that contain the sockets of servers."""
_GUARD = (sys.executable, "-m", "mindrl.platform.guard")
_EXAMPLE = """\
examples:
  mindrl serve outputs/2026-11-22/09-00-00
  mindrl serve models/Qwen2.5-7B --port 8001 --tensor-parallel-size 4 -- --max-num-seqs 64
  mindrl serve --config-name mine --replica 0

A model is served on the loopback address with a token; what stands behind -- are options of vLLM's
server. With --config-name the server is a replica of a run (docs/how-to/external-engines.md), and
key=value are changes, as for a training program.

The exit code is 2 where what was asked for cannot be; else it is the server's.
"""


def serve(name: str = "mindrl serve") -> int:
    """Replace this process by the guard of the server; returns only after an error."""
    about = (
        "Start vLLM's own server: with the exported model of a run, or any other, for whoever "
        "speaks OpenAI's protocol; or, with --config-name, as a replica of a run, at its address "
        "of generate_config.servers: the run gives it weights, and its requests have the token of "
        "the run."
    )
    parser = parser_of(name, about, _EXAMPLE)
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL_OR_RUN", help="folder of a model, or of a run")
    add("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    port = "(default: %(default)s)"
    add("--port", type=lambda text: count(text, most=65535), default=8000, metavar="N", help=port)
    file = "holds the token, and nothing else (default: a new one, which only you can read)"
    add("--token-file", type=Path, metavar="FILE", help=file)
    add_speaker_options(parser)
    replica = parser.add_argument_group("as a replica of a run").add_argument
    replica("--config-name", metavar="NAME", help="of the run's file in configs/")
    replica("--config-dir", metavar="DIR", help="folder of that file, where it is not configs/")
    place = "its place in generate_config.servers (default: %(default)s)"
    replica("--replica", type=int, default=0, metavar="N", help=place)
    replica("overrides", nargs="*", metavar="key=value", help="changes, as for a training program")
    given = sys.argv[1:]
    ours = given.index("--") if "--" in given else len(given)
    options = parser.parse_intermixed_args(given[:ours])
    options.of_vllm = given[ours + 1 :]
    become_server = _serve_model if options.config_name is None else _serve_replica
    return exit_code(lambda: become_server(options))


def _serve_replica(options: argparse.Namespace) -> int:
    if options.model is not None:
        options.overrides.insert(0, options.model)
    if options.of_vllm:
        raise ConfigError(f"-- {shlex.join(options.of_vllm)}: a replica of a run has no options")
    config = asked_config(options)
    refuse(config, findings(config))
    servers, replica = config.generate_config.servers, options.replica
    if not 0 <= replica < len(servers):
        raise ConfigError(f"--replica {replica}: generate_config.servers has {len(servers)}")
    platform = choose_platform(config.rl_config.device)
    command = server_command(config, platform, replica)
    environment = server_environment(config, platform)
    say(f"replica {replica} listens at {servers[replica]}")
    _start(command, environment)


def _serve_model(options: argparse.Namespace) -> int:
    if options.model is None:
        raise ConfigError("MODEL_OR_RUN is missing, or --config-name of a run")
    if options.overrides:
        raise ConfigError(
            f"{options.overrides[0]}: only a replica of a run takes key=value (--config-name); "
            "options of vLLM's server stand behind --"
        )
    require_rollout_engine()
    model, _, platform, settings = asked_speaker(options)
    address = (options.host, options.port)
    _require_free(address)
    file = options.token_file or _new_token()
    command = [*model_server_command(settings, model.name, address), *options.of_vllm]
    environment = model_server_environment(platform, _token(file))
    if not is_loopback(options.host):
        note(f"{options.host} may be reached by others, and what they send is not encrypted")
    say(*_how_to_ask(model.name, address, file))
    _start(command, environment)


def _start(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the guard of a server, with a new folder for the sockets."""
    sockets = Scratch.made(_FOLDERS)
    sockets.keep_over_exec()
    become([*_GUARD, *command], {**environment, ENGINE_SOCKETS: str(sockets.folder)})


def _how_to_ask(name: str, address: tuple[str, int], file: Path) -> tuple[str, ...]:
    """Return the lines about the server's address and a sample request; the token is not shown."""
    host, port = address
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}]}
    token = f'"Authorization: Bearer $(cat {shlex.quote(str(file))})"'
    return (
        f"{name} is served at {url} once it is loaded; Ctrl-C ends it. Token: {file}",
        "for instance:",
        f"  curl -s {url}/chat/completions -H {token} \\",
        f"    -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}",
    )


def _require_free(address: tuple[str, int]) -> None:
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server(address, family=family).close()
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror or error}") from error


def _new_token() -> Path:
    descriptor, path = tempfile.mkstemp(prefix="mindrl-", suffix=".token")
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return Path(path)


def _token(file: Path) -> str:
    try:
        token = read_regular_text(file).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {file} cannot be read: {error}") from error
    if not token:
        raise ConfigError(f"--token-file {file} is empty")
    return token
