"""The environments of a run, from its configuration."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from mindrl.config.run import RunConfig
from mindrl.environments.host import EnvironmentHost, Limits
from mindrl.environments.process import EnvironmentSpec


@contextmanager
def environments_of(config: RunConfig) -> Iterator[EnvironmentHost | None]:
    """Provide the environments of a run, and end their processes; None without any."""
    section = config.environment_config
    if section is None or not config.rolls_out:
        yield None
        return
    spec = EnvironmentSpec(
        environment=section.environment,
        environments={each.name: asdict(each) for each in section.environments},
        tools=section.tools,
        arguments=section.arguments or {},
        memory_bytes=section.memory_mib << 20,
        sandbox=section.sandbox,
        call_seconds=section.call_timeout_seconds,
    )
    limits = Limits(
        processes=section.processes,
        start_seconds=section.start_timeout_seconds,
        call_seconds=section.call_timeout_seconds,
    )
    host = EnvironmentHost(spec=spec, limits=limits)
    try:
        yield host
    finally:
        host.close()
