#!/usr/bin/env bash
# Train with a configuration for Ascend NPUs on one or more nodes; see --help.
set -euo pipefail

lib="$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)"
# shellcheck source=lib/ascend.sh
source "$lib/ascend.sh"

config="${1:-}"
if [[ -z "$config" || "$config" == -* ]]; then
    ascend_usage "scripts/train_ascend.sh CONFIG" "CONFIG is the name of a file in configs/ without its suffix"
    printf '\nCONFIG is one of: %s\n' "$(ascend_runs)"
    [[ "$config" == -h || "$config" == --help ]] || exit "$EXIT_USAGE"
    exit 0
fi
if ! grep -qs '^defaults:' "$ROOT/configs/$config.yaml"; then
    fail "$EXIT_USAGE" "configs/ has no configuration $config; known: $(ascend_runs)"
fi
ascend_main train.py "$config" "${@:2}"
