"""Start a vLLM server, for a model or as a replica of a run: `mindrl serve`."""

import argparse
import json
import secrets
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from mindrl.config.backends import ROLLOUT_BACKEND
from mindrl.config.generate import GenerateConfig
from mindrl.config.server_address import is_loopback
from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.launch.engine_server import server_command, server_environment, token_in
from mindrl.launch.model_server import model_server_command, model_server_environment
from mindrl.observability.terminal import note, say
from mindrl.platform.device import choose_platform
from mindrl.platform.environment import become
from mindrl.platform.scratch import ENGINE_SOCKETS, Scratch
from mindrl.preflight.checks import refuse
from mindrl.programs.arguments import Program, add_overrides, port_number, refuse_unless
from mindrl.programs.chat_engine_options import (
    CHAT_ENGINE_OPTIONS,
    add_chat_engine_options,
    chosen_chat_engine,
)
from mindrl.programs.plan_options import chosen_config
from mindrl.programs.train import require_packages

_FOLDERS = "mindrl-server-"
"""Prefix of folders with a server's sockets and its own token; the guard removes them."""
_HOST, _PORT = "127.0.0.1", 8000
_GUARD = (sys.executable, "-m", "mindrl.platform.guard")
_EXAMPLE = """\
examples:
  mindrl serve outputs/2026-11-22/09-00-00
  mindrl serve models/Qwen2.5-7B --port 8001 --tensor-parallel-size 4 -- --max-num-seqs 64
  mindrl serve --config-name mine --replica 0

A model is served on the loopback address with a token. Options after -- are passed to vLLM's
server. With --config-name the server is a replica of a run (docs/how-to/external-engines.md), and
key=value are changes, as for a training program.

The exit code is 2 for an impossible request, else the exit code of the server.
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL_OR_RUN", help="folder of a model, or of a run")
    add("--host", help=f"address to listen on (default: {_HOST})")
    add("--port", type=port_number, metavar="N", help=f"(default: {_PORT})")
    file = "file with only the token (default: a new file that only you can read)"
    add("--token-file", type=Path, metavar="FILE", help=file)
    add_chat_engine_options(parser)
    replica = parser.add_argument_group("as a replica of a run").add_argument
    replica("--config-name", metavar="NAME", help="name of the run's file in configs/")
    replica("--config-dir", metavar="DIR", help="folder of that file (default: configs/)")
    place = "its index in generate_config.servers (default: 0)"
    replica("--replica", type=int, metavar="N", help=place)
    place = "where it listens, with generate_config.servers_file"
    replica("--address", metavar="URL", help=place)
    add_overrides(parser)


def _parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse what stands before `--`; the rest goes to vLLM."""
    given = sys.argv[1:]
    ours = given.index("--") if "--" in given else len(given)
    options = parser.parse_intermixed_args(given[:ours])
    options.of_vllm = given[ours + 1 :]
    return options


def _serve(options: argparse.Namespace) -> int:
    """Replace this process by the guard of the server; returns only after an error."""
    is_replica = options.config_name is not None
    of_replica = ("--config-dir", "--replica", "--address")
    refuse_unless(is_replica, "with --config-name", options, of_replica)
    of_model = ("--host", "--port", "--token-file", *CHAT_ENGINE_OPTIONS)
    refuse_unless(not is_replica, "without --config-name", options, of_model)
    return (_serve_replica if is_replica else _serve_model)(options)


def _serve_replica(options: argparse.Namespace) -> int:
    if options.model is not None:
        options.overrides.insert(0, options.model)
    if options.of_vllm:
        raise ConfigError(f"-- {shlex.join(options.of_vllm)}: a replica takes no vLLM options")
    config = chosen_config(options)
    refuse(config, findings(config))
    address = _address(config.generate_config, options)
    platform = choose_platform(config.rl_config.device)
    command = server_command(config, platform, address)
    environment = server_environment(config, platform)
    name = "a replica" if options.address else f"replica {options.replica or 0}"
    say(f"{name} listens on {address}")
    _start(command, environment, Scratch.made(_FOLDERS))


def _address(generate: GenerateConfig, options: argparse.Namespace) -> str:
    """Return the address of a replica."""
    if (file := generate.servers_file) is not None:
        if options.address is None:
            need = f"add it to generate_config.servers_file={file} when the run may use it"
            raise ConfigError(f"--address is missing, such as http://127.0.0.1:8000; {need}")
        if options.replica is not None:
            raise ConfigError("--replica needs generate_config.servers; use --address")
        return str(options.address)
    replica: int = options.replica or 0
    servers = generate.servers
    if options.address is not None:
        raise ConfigError("--address needs generate_config.servers_file; use --replica")
    if not servers:
        raise ConfigError(
            f"--replica {replica}: generate_config.servers has no addresses; name one per replica, "
            "such as \"generate_config.servers=['http://127.0.0.1:8000']\""
        )
    if not 0 <= replica < len(servers):
        last = len(servers) - 1
        raise ConfigError(
            f"--replica {replica} must be an index of generate_config.servers, from 0 to {last}"
        )
    return servers[replica]


def _serve_model(options: argparse.Namespace) -> int:
    if options.model is None:
        raise ConfigError("MODEL_OR_RUN is missing; or give --config-name of a run")
    if options.overrides:
        raise ConfigError(
            f"{options.overrides[0]}: key=value needs --config-name of a run; put options of "
            "vLLM's server after --"
        )
    require_packages("an answer", ROLLOUT_BACKEND)
    model, _, platform, settings = chosen_chat_engine(options)
    address = (options.host or _HOST, options.port or _PORT)
    _require_free(address)
    file: Path | None = options.token_file
    token = secrets.token_hex(32) if file is None else token_in(f"--token-file {file}", file)
    command = [*model_server_command(settings, model.name, address), *options.of_vllm]
    environment = model_server_environment(platform, token)
    scratch = Scratch.made(_FOLDERS)
    if file is None:
        file = scratch.folder / "server.token"
        file.touch(mode=0o600)
        file.write_text(token, "utf-8")
    if not is_loopback(address[0]):
        note(f"others may reach {address[0]}, and requests are not encrypted")
    say(*_request_help(model.name, address, file))
    _start(command, environment, scratch)


def _start(command: Sequence[str], environment: Mapping[str, str], scratch: Scratch) -> NoReturn:
    """Replace this process by the guard of a server, with a folder for the sockets."""
    scratch.keep_over_exec()
    folder = str(scratch.folder)
    become([*_GUARD, "--remove", folder, *command], {**environment, ENGINE_SOCKETS: folder})


def _request_help(name: str, address: tuple[str, int], file: Path) -> tuple[str, ...]:
    """Return the lines about the server's address and a sample request; the token is not shown."""
    host, port = address
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}]}
    token = f'"Authorization: Bearer $(cat {shlex.quote(str(file))})"'
    return (
        f"{name} is served at {url} after loading; Ctrl-C stops the server. Token: {file}",
        "for example:",
        f"  curl -s {url}/chat/completions -H {token} \\",
        f"    -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}",
    )


def _require_free(address: tuple[str, int]) -> None:
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server(address, family=family).close()
    except (OSError, TypeError) as error:
        # A host that cannot be encoded is a TypeError.
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"--host {host} --port {port}: {why}") from error


PROGRAM = Program(
    about="Start vLLM's server with the exported model of a run or with another model, for clients "
    "of OpenAI's protocol. With --config-name it is a replica of a run instead, at its address in "
    "generate_config.servers: the run sends it weights, and requests need the run's token.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_serve,
    parse=_parse,
)
