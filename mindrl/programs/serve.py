"""The program that starts the server of a replica: `mindrl serve`."""

import argparse
import sys

from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.launch.engine_server import server_command, server_environment
from mindrl.observability.terminal import say
from mindrl.platform.device import choose_platform
from mindrl.platform.environment import become
from mindrl.preflight.checks import refuse
from mindrl.programs.arguments import parser_of
from mindrl.programs.exits import exit_code
from mindrl.programs.plan_options import asked_config

_EXAMPLE = """\
examples:
  mindrl serve --config-name mine --replica 0

The exit code is 2 where the configuration cannot be read or has findings; else it is the server's.
"""


def serve(name: str = "mindrl serve") -> int:
    """Become the guard of the server that the command line asks for; returns where it cannot be."""
    about = (
        "Start vLLM's own server as a replica of a run, at its address of generate_config.servers; "
        "the run gives it weights, and its requests have the token of the run."
    )
    parser = parser_of(name, about, _EXAMPLE)
    add = parser.add_argument
    add("--config-name", required=True, metavar="NAME", help="of the run's file in configs/")
    add("--config-dir", metavar="DIR", help="folder of that file, where it is not configs/")
    replica = "its place in generate_config.servers (default: %(default)s)"
    add("--replica", type=int, default=0, metavar="N", help=replica)
    add("overrides", nargs="*", metavar="key=value", help="changes, as for a training program")
    options = parser.parse_intermixed_args()
    return exit_code(lambda: _serve(options))


def _serve(options: argparse.Namespace) -> int:
    config = asked_config(options)
    refuse(config, findings(config))
    servers, replica = config.generate_config.servers, options.replica
    if not 0 <= replica < len(servers):
        raise ConfigError(f"--replica {replica}: generate_config.servers has {len(servers)}")
    platform = choose_platform(config.rl_config.device)
    command = server_command(config, platform, replica)
    environment = server_environment(config, platform)
    say(f"replica {replica} listens at {servers[replica]}")
    become([sys.executable, "-m", "mindrl.platform.guard", *command], environment)
