#!/usr/bin/env bash
# Create .cache/npu in this checkout: the vendors' packages, and the simulated CANN on which they run in tests.
#
#   bash scripts/install_npu_simulated.sh           vllm-ascend 0.23
#   bash scripts/install_npu_simulated.sh 0.30      vllm-ascend 0.30
#
# Prints the environment of a process on the simulated NPU, one variable per line. Safe to repeat: files made from the
# same pins and sources are kept. The first run downloads about 160 MB from the package index, and compiles for half a
# minute. Files made from other pins are removed after a week without use.
#
# PYTHON=/path/to/python names an environment other than .venv.
# .venv is not changed: with torch-npu installed, a plain `import torch` raises an error without CANN.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly SOURCES=tests/npu_simulated/cann
readonly PYTHON=${PYTHON:-.venv/bin/python}
# pip would build a source archive only to find its name: this archive is read, not installed.
case "${1:-0.23}" in
    0.23)
        readonly PINS=requirements/npu-simulated.txt VLLM_ASCEND=0.23.0.post1
        readonly VLLM_ASCEND_SHA256=a3b9f4a5dd7aa50c37e03d1f35937c4ae5aeacc49b734cac74d59ce5757738e1
        ;;
    0.30)
        readonly PINS=requirements/npu-simulated-0.30.txt VLLM_ASCEND=0.30.0rc2
        readonly VLLM_ASCEND_SHA256=05cb51448c0cd174ea338b16ebbfc8e215f44b373ea2a0d65f1314523a01152f
        ;;
    *)
        echo "error: $1: no such generation of vllm-ascend; known are 0.23 and 0.30" >&2
        exit 2
        ;;
esac

say() { printf '[install npu simulated] %s\n' "$*" >&2; }
fail() {
    say "error: $*"
    exit 2
}

fingerprint() {
    { "$PYTHON" -c 'import sys; print(sys.version_info[:2])' && cat "$@"; } | sha256sum | head -c 12
}

# Download the source archive of a version as the contract check does.
download_vllm_ascend() {
    PYTHONPATH=scripts:. "$PYTHON" - "$VLLM_ASCEND" "$1" <<'END'
import sys
from pathlib import Path
from npu_contract.package_index import published_file

print(published_file("vllm-ascend", sys.argv[1], folder=Path(sys.argv[2])))
END
}

unpack_vllm_ascend() {
    local archive target=$1
    archive=$(download_vllm_ascend .cache/npu/archives)
    sha256sum --status --check <<<"$VLLM_ASCEND_SHA256  $archive" || fail "the checksum of $archive differs from the pinned one"
    tar -xzf "$archive" -C "$target" --strip-components=1 --wildcards '*/vllm_ascend' '*/vllm_ascend.egg-info'
    # Its build would write this file with the generation of the chip.
    printf "__device_type__ = 'A2'\n" >"$target/vllm_ascend/_build_info.py"
}

install_packages() {
    local target=$1 made
    [[ ! -d "$target" ]] || return 0
    say "downloading torch-npu, vllm and vllm-ascend"
    made=$(mktemp -d "$target.XXXX")
    "$PYTHON" -m pip --disable-pip-version-check install -qq --no-deps --only-binary :all: --require-hashes \
        --target "$made" -r "$PINS"
    # The engine uses the simulated kernels.
    find "$made/vllm" -name '*.so' -delete
    unpack_vllm_ascend "$made"
    chmod 755 "$made"
    mv -T "$made" "$target"
}

# Remove files of other pins or sources that were not used for a week.
remove_old() {
    find "$(realpath .cache/npu)" -mindepth 1 -maxdepth 1 -type d -mtime +6 -regextype posix-extended \
        -regex '.*/(packages|cann)-[0-9a-f]{12}(\.[A-Za-z0-9]{4})?' -exec rm -rf {} +
}

main() {
    [[ "$(uname -sm)" == "Linux x86_64" ]] || fail "the pinned packages are for Linux on x86_64; this is $(uname -sm)"
    mkdir -p .cache/npu
    exec 9>.cache/npu/lock
    flock 9
    local packages cann torch
    packages=$(realpath .cache/npu)/packages-$(
        fingerprint "$PINS" <(declare -f install_packages unpack_vllm_ascend) <(echo "$VLLM_ASCEND_SHA256")
    )
    torch=$("$PYTHON" -c 'import importlib.util; print(*importlib.util.find_spec("torch").submodule_search_locations)')
    cann=$(realpath .cache/npu)/cann-$(fingerprint "$torch/version.py" <(grep '^torch-npu' "$PINS") "$SOURCES"/*)
    install_packages "$packages"
    [[ -d "$cann" ]] || say "building the simulated CANN"
    bash "$SOURCES/build.sh" "$torch" "$packages/torch_npu" "$cann" >&2
    touch "$packages" "$cann"
    remove_old
    printf '%s\n' "PYTHONPATH=$packages" "LD_LIBRARY_PATH=$cann/lib" "ASCEND_HOME_PATH=$cann/toolkit" \
        "ASCEND_OPP_PATH=$cann/toolkit/opp"
}

main "$@"
