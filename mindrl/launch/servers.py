"""The servers that generate in the place of a run's own processes."""

from collections.abc import Callable

from mindrl.cluster.server_group import ServerGroup
from mindrl.config.run import RunConfig
from mindrl.launch.engine_server import configuration_text, server_token
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.http.replica import HttpReplica

_MARGIN_SECONDS = 30
"""Of a request beyond the limit that the server itself keeps."""


def join_server(config: RunConfig, number: int, meanwhile: Callable[[], None]) -> ServerGroup:
    """Wait for the server that is a replica; `meanwhile` is called again and again until then.

    Raises:
        ConfigError: The file of the token cannot be read.
        WorkerDiedError: The server does not answer in time.
    """
    generate, rl = config.generate_config, config.rl_config
    client = ServerClient(
        url=generate.servers[number],
        token=server_token(config),
        name=f"replica {number}",
    )
    replica = HttpReplica(
        number=number,
        client=client,
        rows=generate.max_num_seqs,
        answer_seconds=rl.worker_call_timeout_seconds,
        # Weights are sent to one replica after the other.
        control_seconds=generate.reshard_timeout_seconds * (len(generate.servers) + 1)
        + _MARGIN_SECONDS,
    )
    text, seconds = configuration_text(config), rl.worker_start_timeout_seconds
    return ServerGroup(replica, text, seconds, meanwhile)
