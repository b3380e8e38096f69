"""Start vLLM's own server as a replica of a run: python cli/serve.py --config-name NAME."""

import sys

import in_environment  # noqa: F401 - finds the environment of this checkout

from mindrl.programs.serve import serve

if __name__ == "__main__":
    sys.exit(serve())
