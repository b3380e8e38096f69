#!/usr/bin/env bash
# Train Qwen2.5-7B with GRPO on Ascend NPUs on one or more nodes; see --help.
set -euo pipefail

lib="$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)"
# shellcheck source=lib/ascend.sh
source "$lib/ascend.sh"

ascend_main train_grpo.py grpo_qwen25_7b "$@"
