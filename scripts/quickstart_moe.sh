#!/usr/bin/env bash
# The quickstart with a mixture of experts: two workers, expert parallelism 2 in training and tensor parallelism 2 in
# rollout. Usage as for scripts/quickstart.sh.
set -euo pipefail

exec bash "$(dirname "${BASH_SOURCE[0]}")/quickstart.sh" --config-name grpo_tiny_moe_cpu "$@"
