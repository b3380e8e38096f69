"""Print how many devices a run takes, and how many of them one machine has: `16 8`.

A configuration that cannot be read ends with exit code 2, as in the training programs.
"""

import argparse
import sys

from mindrl.programs.compose import composed_config
from mindrl.programs.exits import exit_code


def main() -> int:
    """Read the configuration as the training programs do; nothing is checked here."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--config-name", required=True)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    resource = composed_config(arguments.config_name, arguments.overrides).rl_config.actor_resource
    print(resource.num_npus, resource.npus_per_node)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
