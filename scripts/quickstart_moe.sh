#!/usr/bin/env bash
# The quickstart with a mixture of experts: two workers, expert parallelism 2 in training and tensor parallelism 2 in
# rollout. Usage as for scripts/quickstart.sh.
set -euo pipefail

lib="$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)"
# shellcheck source=lib/quickstart.sh
source "$lib/quickstart.sh"

quickstart_prepare qwen3_moe .cache/tiny/moe_model

exec python cli/train_grpo.py --config-name grpo_tiny_moe_cpu "$@"
