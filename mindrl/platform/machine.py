"""This machine as a run on one kind of device finds it: what only platform may read."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mindrl.platform.device import PLATFORMS, DeviceKind
from mindrl.platform.device_needs import NEEDS, DeviceNeeds, device_report, group_ports
from mindrl.platform.device_report import DeviceReport
from mindrl.platform.environment import ray_address
from mindrl.platform.host_facts import (
    HostFacts,
    NetworkFacts,
    TokenFacts,
    host_facts,
    network_facts,
    token_facts,
)
from mindrl.platform.setting import Setting


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """Facts that do not depend on what a user asks for."""

    kind: DeviceKind
    needs: DeviceNeeds
    report: DeviceReport
    device_files: int
    """Devices that the system shows; cores where the kind is the CPU."""
    visible_variable: str | None
    visible: tuple[str, ...] | None
    """Devices that the user lists; None where he lists none."""
    settings: tuple[Setting, ...]
    environment: Mapping[str, str]
    """Of the variables of the settings, those that this process has."""
    host: HostFacts
    network: NetworkFacts
    group_ports: range | None
    ray_address: str | None
    token: TokenFacts


def machine_facts(kind: DeviceKind) -> MachineFacts:
    """Look at everything; a vendor's tool may take seconds."""
    platform = PLATFORMS[kind]
    visible = platform.visible_devices()
    names = {setting.name for setting in platform.settings}
    return MachineFacts(
        kind=kind,
        needs=NEEDS[kind],
        report=device_report(kind),
        device_files=platform.device_files(),
        visible_variable=platform.visible_variable,
        visible=None if visible is None else tuple(visible),
        settings=platform.settings,
        environment={name: os.environ[name] for name in sorted(names & os.environ.keys())},
        host=host_facts(),
        network=network_facts(os.environ),
        group_ports=group_ports(kind, os.environ),
        ray_address=ray_address(),
        token=token_facts(os.environ),
    )
