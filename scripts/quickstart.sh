#!/usr/bin/env bash
# From nothing to a trained model on a plain CPU machine: environment, small model, data, GRPO, summary.
#
#   bash scripts/quickstart.sh                              all of it
#   bash scripts/quickstart.sh megatron_training.seed=2     the arguments go to cli/train_grpo.py
#
# Safe to repeat: what is there and up to date is kept. Writes into this checkout and your cache folder only.
set -euo pipefail

lib="$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)"
# shellcheck source=lib/quickstart.sh
source "$lib/quickstart.sh"

quickstart_prepare qwen2 .cache/tiny/model

# One worker per core, two at most: that is what the configuration asks for.
workers=()
if (($(nproc) < 2)); then
    workers=(rl_config.actor_resource.num_npus=1)
fi
exec python cli/train_grpo.py --config-name grpo_tiny_cpu "${workers[@]}" "$@"
