#!/usr/bin/env bash
# Every check of the project: style, spelling, shell, types, layers, tests on CPU.
#
#   bash scripts/test.sh                      all of it (what CI runs)
#   bash scripts/test.sh -k advantage -x      the arguments go to pytest
#   bash scripts/test.sh tests/unit/config    these tests instead of all
#
# Every check runs even when an earlier one failed; the exit code is 1 when any failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/install.sh
export PATH="$PWD/.venv/bin:$PATH"

# Nothing is downloaded and nothing is reported to anyone.
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export RAY_USAGE_STATS_ENABLED=0 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
# Several processes share few cores here; threads of their own make them slower.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false

passed=0 failed=0 skipped=0
failures=()

check() {
    local name="$1"
    shift
    printf '\n== %s\n' "$name"
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        failures+=("$name")
    fi
}

# Add the counts of a JUnit report to the totals.
count_tests() {
    local report="$1" kind value
    local -A count=([tests]=0 [failures]=0 [errors]=0 [skipped]=0)
    for kind in "${!count[@]}"; do
        value="$(sed -n "s/.*<testsuite [^>]*\\b$kind=\"\\([0-9]*\\)\".*/\\1/p" "$report" | head -n 1)"
        count[$kind]="${value:-0}"
    done
    local bad=$((count[failures] + count[errors]))
    passed=$((passed + count[tests] - bad - count[skipped]))
    failed=$((failed + bad))
    skipped=$((skipped + count[skipped]))
}

# The arguments go to pytest.
run_tests() {
    local name="$1" report status=0 failed_before="$failed"
    shift
    report="$(mktemp)"
    printf '\n== %s\n' "$name"
    python -m pytest -m "not gpu and not npu" --durations=20 --junitxml "$report" "$@" || status=$?
    count_tests "$report"
    rm -f "$report"
    if ((status)); then
        failures+=("$name")
        # A run that broke off, or selected nothing, has no failed test to count.
        ((failed > failed_before)) || failed=$((failed + 1))
    fi
}

check "ruff check" ruff check .
check "ruff format" ruff format --check .
check "codespell" codespell
check "shellcheck" shellcheck -x -P SCRIPTDIR scripts/*.sh scripts/lib/*.sh .ci/run
check "mypy --strict" mypy
check "import layers" lint-imports --no-logo
if (($#)); then
    run_tests "tests" "$@"
else
    # Only unit tests run side by side: the others start several processes each.
    run_tests "unit tests" -n auto --maxprocesses 4 --dist loadfile tests/unit
    run_tests "distributed and end-to-end tests" tests/distributed tests/e2e
fi

printf '\n== total after %ss' "$SECONDS"
if ((${#failures[@]})); then
    printf ': FAILED:%s' "$(printf ' [%s]' "${failures[@]}")"
fi
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((${#failures[@]} == 0))
