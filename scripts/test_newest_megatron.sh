#!/usr/bin/env bash
# Run tests of the training side on the newest release of Megatron-core; print its version and the counts of cases.
#
#   bash scripts/test_newest_megatron.sh             the newest release of the package index
#   bash scripts/test_newest_megatron.sh 0.17.1      this release
#
# Releases from 0.17 require Python 3.12, but the modules that mindrl imports use no syntax or library newer than 3.11:
# a release is unpacked into .cache/megatron-core, and its Python files come before those of .venv, which is unchanged.
# Cases of grouped experts are left out: these releases have them only with Transformer Engine.
#
# Exit code 0 if no newer release can be downloaded or all cases pass, 1 if a case fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PYTHON=${PYTHON:-.venv/bin/python}
readonly FOLDER=.cache/megatron-core
# The newest Python for which Megatron-core has wheels.
readonly FOR_PYTHON=3.12
readonly TESTS=(
    tests/distributed/test_training_layouts.py
    tests/distributed/test_layouts.py
    tests/distributed/test_training.py
)

say() { printf '[newest megatron] %s\n' "$*"; }

version_in() {
    PYTHONPATH="$1" "$PYTHON" -c 'import importlib.metadata as found; print(found.version("megatron-core"))'
}

main() {
    local made pinned version status=0
    pinned=$(version_in "")
    mkdir -p "$FOLDER"
    made=$(mktemp -d "$FOLDER/new.XXXX")
    # shellcheck disable=SC2064  # the folder of this call
    trap "rm -rf '$made'" EXIT
    # `pip install` refuses what requires another Python, even for a folder.
    "$PYTHON" -m pip --disable-pip-version-check download -qq --no-deps --only-binary :all: \
        --python-version "$FOR_PYTHON" --dest "$made" "megatron-core${1:+==$1}" \
        || { say "no release can be downloaded; $pinned is pinned"; return 0; }
    "$PYTHON" -m zipfile -e "$made"/megatron_core-*.whl "$made"
    version=$(version_in "$made")
    if [[ "$version" == "$pinned" ]]; then
        say "$pinned, which is pinned, is the newest release"
        return 0
    fi
    say "$version on $("$PYTHON" --version); $pinned is pinned"
    env -u MINDRL_NIGHTLY PYTHONPATH="$PWD/$made:$PWD" "$PYTHON" -m pytest -q -m "not nightly" -k "not grouped" \
        -p no:cacheprovider --tb=line "${TESTS[@]}" || status=$?
    say "Megatron-core $version: $( ((status)) && echo "a case failed" || echo "all cases passed")"
    ((status == 0))
}

main "$@"
