"""Servers that generate instead of a run's own processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mindrl.cluster.replicas import Members
from mindrl.cluster.server_group import ServerGroup
from mindrl.config.backends import ROLLOUT_BACKEND
from mindrl.errors import WorkerDiedError
from mindrl.launch.engine_server import configuration_text, server_token
from mindrl.models.sharding import dtype_of
from mindrl.platform.device import Platform
from mindrl.preflight.run_shardings import RunPlan, RunShardings
from mindrl.resharding.gathering import Broadcast
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.http.replica import EngineServer, HttpReplica
from mindrl.rollout.http.router import RoutedServer, VllmRouter
from mindrl.rollout.http.server_file import ServerFile
from mindrl.rollout.http.sglang_server import SglangServer, WholeTensor
from mindrl.rollout.http.vllm_server import VllmServer

_MARGIN_SECONDS = 30
"""Added to a request's time limit, beyond the server's own."""


@dataclass(frozen=True, kw_only=True)
class RunServers:
    """The servers that are the replicas of a run."""

    plan: RunPlan
    platform: Platform
    router: VllmRouter | None
    listed: ServerFile | None
    """Their addresses, if they join and leave while the run lives."""
    tensors: Sequence[WholeTensor]
    """What servers that load whole tensors receive, in that order; empty for others."""

    @classmethod
    def open(
        cls, plan: RunPlan, platform: Platform, logs: Path, notify: Callable[[str], None]
    ) -> "RunServers":
        """Start the router, if the run has one; `logs` is the folder of its log.

        Raises:
            ConfigError: The token file cannot be read.
            WorkerDiedError: The router does not start.
        """
        config, generate, router, listed = plan.config, plan.config.generate_config, None, None
        if generate.router is not None:
            seconds = config.rl_config.worker_call_timeout_seconds
            router = VllmRouter(logs / "router.log", server_token(config), seconds)
        if generate.servers_file is not None:
            path, allow_remote = Path(generate.servers_file), generate.servers_are_remote
            listed = ServerFile(path=path, allow_remote=allow_remote, notify=notify)
        tensors = _whole_tensors(RunShardings(plan=plan).broadcast)
        return cls(plan=plan, platform=platform, router=router, listed=listed, tensors=tensors)

    def members(self) -> Members | None:
        """Return the members of the fleet, if servers join and leave; at least one at the start."""
        if (listed := self.listed) is None:
            return None
        most = self.plan.config.rollout_layout.replicas
        seconds = self.plan.config.rl_config.worker_start_timeout_seconds
        return Members(
            at_start=max(1, min(most, len(listed.addresses()))),
            start_seconds=seconds + _MARGIN_SECONDS,
            has_left=listed.has_left,
        )

    def join(self, number: int, meanwhile: Callable[[], None]) -> ServerGroup:
        """Wait for the server that is a replica; `meanwhile` is called repeatedly until then.

        A server that leaves the file before it responds is replaced by another.

        Raises:
            ConfigError: The token file cannot be read.
            WorkerDiedError: The server does not respond in time.
        """
        while True:
            servers = self.plan.config.generate_config.servers
            url = self.listed.claim(number, meanwhile) if self.listed else servers[number]
            try:
                return self._join(url, number, meanwhile)
            except WorkerDiedError:
                if self.listed is None or not self.listed.has_left(number):
                    raise

    def close(self) -> None:
        """End the router."""
        if self.router is not None:
            self.router.close()

    def _join(self, url: str, number: int, meanwhile: Callable[[], None]) -> ServerGroup:
        config, plan = self.plan.config, self.plan
        generate, rl = config.generate_config, config.rl_config
        client = ServerClient(url=url, token=server_token(config), name=f"replica {number}")
        # Weights are sent to one replica after another.
        worlds = config.rollout_layout.replicas + 1
        seconds = generate.reshard_timeout_seconds * worlds + _MARGIN_SECONDS
        replica = HttpReplica(
            number=number,
            server=_routed(self._server(client, seconds), self.router),
            vocabulary=plan.models["actor"].vocab_size,
            rows=generate.max_num_seqs,
            answer_seconds=rl.worker_call_timeout_seconds,
            control_seconds=seconds,
        )
        return ServerGroup(replica, rl.worker_start_timeout_seconds, meanwhile)

    def _server(self, client: ServerClient, seconds: float) -> VllmServer | SglangServer:
        """Return the client for the API of a server's engine."""
        config = self.plan.config
        if config.rollout_backend == ROLLOUT_BACKEND:
            text = configuration_text(config)
            return VllmServer(client=client, control_seconds=seconds, configuration=text)
        return SglangServer(
            client=client,
            control_seconds=seconds,
            ranks=self.plan.replica.world_size,
            collectives=self.platform.collective_backend,
            tensors=self.tensors,
            bucket_bytes=self.plan.bucket_bytes,
        )


def _routed(server: VllmServer | SglangServer, router: VllmRouter | None) -> EngineServer:
    """Return a server, reached through the router if there is one."""
    if router is None:
        return server
    assert isinstance(server, VllmServer), "validated: a router serves only vLLM servers"
    client = replace(router.client, name=f"{server.client.name} by vllm-router")
    return RoutedServer(own=server, routed=replace(server, client=client), router=router)


def _whole_tensors(broadcast: Broadcast | None) -> list[WholeTensor]:
    """Return the tensors of a broadcast in its order."""
    if broadcast is None:
        return []
    table, dtype = broadcast.whole.table(0), broadcast.whole.dtype
    return [
        WholeTensor(name, dtype_of(table[name], dtype), table[name].shape)
        for name in broadcast.order
    ]
