#!/usr/bin/env bash
# Every check of the project: style, spelling, shell, types, layers, tests on CPU.
#
#   bash scripts/test.sh                      all of it (what CI runs)
#   bash scripts/test.sh -k advantage -x      the arguments go to pytest
#   bash scripts/test.sh tests/unit/config    these tests instead of all
#   bash scripts/test.sh --nightly            tests marked nightly too, the newest Megatron-core, and planted faults
#   bash scripts/test.sh --nightly --part 1/4 the same of every fourth test file and fault
#
# Every check runs even when an earlier one failed; the exit code is 1 when any failed. Unit tests
# run beside the checks of sources and tests of whole runs, because they often wait, and then those
# of several processes; the output of the unit tests follows at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/install.sh
export PATH="$PWD/.venv/bin:$PATH"

# Nothing is downloaded and nothing is reported to anyone.
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export RAY_USAGE_STATS_ENABLED=0 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
# Each worker of the tests, and each program that they start, would compile what another has compiled.
unset PYTHONDONTWRITEBYTECODE
# Several processes share few cores here; threads of their own make them slower.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false

marks="not gpu and not npu and not faults and not nightly"
nightly=0
if [[ "${1:-}" == --nightly ]]; then
    shift
    marks="not gpu and not npu and not faults" nightly=1
    export MINDRL_NIGHTLY=1
fi
part=()
if ((nightly)) && [[ "${1:-}" == --part && "${2:-}" == [1-9]*/[1-9]* ]]; then
    part=(--part "$2")
    shift 2
fi

passed=0 failed=0 skipped=0
failures=()
scratch="$(mktemp -d)"
beside=() prepared=()
# Ctrl-C does not reach the process groups of what runs beside.
trap 'kill -- "${beside[@]/#/-}" "${prepared[@]/#/-}" 2>/dev/null || true; rm -rf "$scratch"' EXIT

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

# Run pytest; the report and the exit code stay in the scratch folder, by the first argument.
pytest_as() {
    local name="$1" status=0
    shift
    nice -n "${niceness:-0}" python -m pytest -m "$marks" --durations=20 \
        --junitxml "$scratch/$name.xml" "${part[@]}" "$@" || status=$?
    echo "$status" >"$scratch/$name.status"
}

# The same beside what follows, in a process group of its own; the output stays there too.
pytest_beside() {
    set -m
    pytest_as "$@" >"$scratch/$1.log" 2>&1 &
    beside+=($!)
    set +m
}

# Start a prepared process in a process group of its own; the first argument is its log.
prepare() {
    local log="$1"
    shift
    set -m
    python -W ignore "$@" >"$log" 2>&1 &
    prepared+=($!)
    set +m
}

# Start the process whose forks are the workers of pytest.
prepare_workers() {
    prepare "$scratch/python.log" scripts/preloaded_python.py serve "$scratch/python" \
        --tests tests/unit tests/distributed tests/npu_simulated
    workers="popen//python=python scripts/preloaded_python.py $scratch/python"
}

# Start the process whose forks are the ranks of the tests of several processes.
prepare_ranks() {
    prepare "$scratch/zygote.log" tests/distributed/forked_workers.py "$scratch/zygote"
}

# Add what pytest_as left.
count() {
    local name="$1" title="$2" failed_before="$failed"
    [[ ! -f "$scratch/$name.xml" ]] || count_tests "$scratch/$name.xml"
    if (($(cat "$scratch/$name.status"))); then
        failures+=("$title")
        # A run that broke off, or selected nothing, has no failed test to count.
        ((failed > failed_before)) || failed=$((failed + 1))
    fi
}

check_sources() {
    check "ruff check" ruff check .
    check "ruff format" ruff format --check .
    check "codespell" codespell
    check "shellcheck" shellcheck -x -P SCRIPTDIR docker/*.sh examples/*.sh examples/slurm/* scripts/*.sh scripts/lib/*.sh tests/npu_simulated/cann/*.sh .ci/run
    check "mypy --strict" mypy
    check "import layers" lint-imports --no-logo
}

if (($#)); then
    check_sources
    printf '\n== tests\n'
    pytest_as tests "$@"
    count tests "tests"
else
    # In parallel with tests its two ranks would take minutes.
    check "model of the tests" python cli/tiny.py --output .cache/tiny
    prepare_workers
    # Nice: of ranks that wait for each other, one that waits for a core makes all of them wait.
    # The order of the files is that of scripts/suite_order.py, not that of their numbers of tests.
    niceness=10 pytest_beside unit --tx "6*$workers" --dist loadfile --no-loadscope-reorder tests/unit
    check_sources
    # One after the other: both at once slow Ray down so far that it exceeds its own 30 s to start.
    printf '\n== whole runs\n'
    pytest_as runs tests/e2e
    prepare_ranks
    # Unit tests have limits of time that they reach beside ranks that poll for messages.
    wait "${beside[@]}"
    beside=()
    printf '\n== tests of several processes\n'
    # Three files at a time: ranks that wait for messages leave cores idle. Those on simulated NPUs
    # count as one: tests/conftest.py. Planted faults and another Megatron need ranks of their own.
    MINDRL_TESTS_ZYGOTE="$scratch/zygote" pytest_as wide --tx "3*$workers" --dist loadfile \
        tests/distributed tests/npu_simulated
    printf '\n== unit tests\n'
    cat "$scratch/unit.log"
    count runs "whole runs"
    count wide "tests of several processes"
    count unit "unit tests"
    if ((nightly)); then
        # One part of several is enough.
        [[ "${part[1]:-1/1}" != 1/* ]] || check "newest Megatron-core" bash scripts/test_newest_megatron.sh
        check "planted faults" python scripts/mutate.py --jobs 2 "${part[@]}"
    fi
fi

printf '\n== total after %ss' "$SECONDS"
if ((${#failures[@]})); then
    printf ': FAILED:%s' "$(printf ' [%s]' "${failures[@]}")"
fi
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((${#failures[@]} == 0))
