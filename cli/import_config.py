"""Read MindSpeed-RL's or verl's YAML: python cli/import_config.py THEIRS.yaml -o OURS.yaml."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.import_config import import_config

if __name__ == "__main__":
    sys.exit(import_config())
