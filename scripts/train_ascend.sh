#!/usr/bin/env bash
# Train with a configuration for Ascend NPUs, on one node or several; --help explains it.
set -euo pipefail

lib="$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)"
# shellcheck source=lib/ascend.sh
source "$lib/ascend.sh"

config="${1:-}"
if [[ -z "$config" || "$config" == -* ]]; then
    ascend_usage "scripts/train_ascend.sh CONFIG" "a file of configs/, CONFIG without its suffix"
    printf '\nCONFIG is one of: %s\n' "$(ascend_runs)"
    [[ "$config" == -h || "$config" == --help ]] || exit "$EXIT_USAGE"
    exit 0
fi
# The first word of a configuration's name is its algorithm, and the program that trains with it.
program="train_${config%%_*}.py"
if [[ ! -f "$ROOT/configs/$config.yaml" || ! -f "$ROOT/cli/$program" ]]; then
    fail "$EXIT_USAGE" "configs/ has no run $config; there are: $(ascend_runs)"
fi
ascend_main "$program" "$config" "${@:2}"
