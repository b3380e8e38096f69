"""Print the devices of a run: `12 8 2 8 KEY + KEY`.

They are the number of devices, the size of a machine, the number of machines, the most devices on
one of them, and the keys whose sum is the number of devices.

If the configuration cannot be read, the exit code is 2, as in the training programs.
"""

import argparse
import sys

from mindrl.config.layout_keys import ROLLOUT_DEVICES
from mindrl.config.placement_rules import placement_findings
from mindrl.config.role_places import devices_key
from mindrl.config.validate import layout_findings
from mindrl.preflight.checks import refuse
from mindrl.programs.compose import composed_config
from mindrl.programs.exits import exit_code


def main() -> int:
    """Read the configuration as the training programs do, and check only what placement needs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--config-name", required=True)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    config = composed_config(arguments.config_name, arguments.overrides)
    if config.starts_engines:
        refuse(config, (*placement_findings(config), *layout_findings(config)))
    shares = config.placement.shares
    # Without duplicates, in order.
    keys = dict.fromkeys(devices_key(config, role) for role in config.roles)
    if config.starts_engines:
        keys[ROLLOUT_DEVICES] = None
    per_node = config.rl_config.actor_resource.npus_per_node
    print(config.devices, per_node, len(shares), max(shares), " + ".join(keys))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
