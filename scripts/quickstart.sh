#!/usr/bin/env bash
# Train a small model on a plain CPU machine: install the environment, then start `mindrl quickstart` in this checkout.
#
#   bash scripts/quickstart.sh
#   bash scripts/quickstart.sh megatron_training.seed=2     passes the arguments to mindrl quickstart
#
# Safe to repeat: files that are up to date are kept. Writes only to this checkout and your cache folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/install.sh
exec .venv/bin/python cli/quickstart.py "$@"
