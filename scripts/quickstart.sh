#!/usr/bin/env bash
# Train a small model on a plain CPU machine: environment, model, data, GRPO, summary.
#
#   bash scripts/quickstart.sh
#   bash scripts/quickstart.sh megatron_training.seed=2     passes the arguments to cli/train_grpo.py
#
# Safe to repeat: files that are up to date are kept. Writes only to this checkout and your cache folder.
set -euo pipefail

lib="$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)"
# shellcheck source=lib/quickstart.sh
source "$lib/quickstart.sh"

quickstart_prepare qwen2 .cache/tiny/model

# One worker per core, at most the two workers of the configuration.
workers=()
if (($(nproc) < 2)); then
    workers=(rl_config.actor_resource.num_npus=1)
fi
exec python cli/train_grpo.py --config-name grpo_tiny_cpu "${workers[@]}" "$@"
