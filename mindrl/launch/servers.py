"""Servers that generate instead of a run's own processes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mindrl.cluster.server_group import ServerGroup
from mindrl.config.backends import ROLLOUT_BACKEND
from mindrl.config.run import RunConfig
from mindrl.launch.engine_server import configuration_text, server_token
from mindrl.launch.link_routes import whole_tensors
from mindrl.models.sharding import dtype_of
from mindrl.platform.device import Platform
from mindrl.preflight.run_shardings import RunPlan
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.http.replica import EngineServer, HttpReplica
from mindrl.rollout.http.router import RoutedServer, VllmRouter
from mindrl.rollout.http.sglang_server import SglangServer, WholeTensor
from mindrl.rollout.http.vllm_server import VllmServer

_MARGIN_SECONDS = 30
"""Added to a request's time limit, beyond the server's own."""


def open_router(config: RunConfig, logs: Path) -> VllmRouter | None:
    """Start the router of a run, if it has one; `logs` is the folder of its log.

    Raises:
        ConfigError: The token file cannot be read.
        WorkerDiedError: The router does not start.
    """
    if config.generate_config.router is None:
        return None
    seconds = config.rl_config.worker_call_timeout_seconds
    return VllmRouter(logs / "router.log", server_token(config), seconds)


def join_server(
    plan: RunPlan,
    platform: Platform,
    router: VllmRouter | None,
    number: int,
    meanwhile: Callable[[], None],
) -> ServerGroup:
    """Wait for the server that is a replica; `meanwhile` is called repeatedly until then.

    Raises:
        ConfigError: The token file cannot be read.
        WorkerDiedError: The server does not answer in time.
    """
    config = plan.config
    generate, rl = config.generate_config, config.rl_config
    client = ServerClient(
        url=generate.servers[number],
        token=server_token(config),
        name=f"replica {number}",
    )
    # Weights are sent to one replica after another.
    seconds = generate.reshard_timeout_seconds * (len(generate.servers) + 1) + _MARGIN_SECONDS
    replica = HttpReplica(
        number=number,
        server=_routed(_server(plan, platform, client, seconds), router),
        vocabulary=plan.models["actor"].vocab_size,
        rows=generate.max_num_seqs,
        answer_seconds=rl.worker_call_timeout_seconds,
        control_seconds=seconds,
    )
    return ServerGroup(replica, rl.worker_start_timeout_seconds, meanwhile)


def _routed(server: VllmServer | SglangServer, router: VllmRouter | None) -> EngineServer:
    """Return a server behind the router, if there is one."""
    if router is None:
        return server
    assert isinstance(server, VllmServer), "validated: a router serves only vLLM servers"
    client = replace(router.client, name=f"{server.client.name} by vllm-router")
    return RoutedServer(own=server, routed=replace(server, client=client), router=router)


def _server(
    plan: RunPlan, platform: Platform, client: ServerClient, seconds: float
) -> VllmServer | SglangServer:
    """Return the client for the API of a server's engine."""
    config = plan.config
    if config.rollout_backend == ROLLOUT_BACKEND:
        text = configuration_text(config)
        return VllmServer(client=client, control_seconds=seconds, configuration=text)
    whole = whole_tensors(plan)
    tensors = [
        WholeTensor(name, dtype_of(entry, whole.dtype), entry.shape)
        for name, entry in whole.table(0).items()
    ]
    return SglangServer(
        client=client,
        control_seconds=seconds,
        ranks=plan.replica.world_size,
        collectives=platform.collective_backend,
        tensors=tensors,
        bucket_bytes=plan.bucket_bytes,
    )
