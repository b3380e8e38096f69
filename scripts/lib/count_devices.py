"""Print the number of devices of a run, and the number on one machine: `16 8`.

If the configuration cannot be read, the exit code is 2, as in the training programs.
"""

import argparse
import sys

from mindrl.programs.compose import composed_config
from mindrl.programs.exits import exit_code


def main() -> int:
    """Read the configuration as the training programs do, without checks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--config-name", required=True)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    resource = composed_config(arguments.config_name, arguments.overrides).rl_config.actor_resource
    print(resource.num_npus, resource.npus_per_node)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
