#!/usr/bin/env bash
# Build the simulated CANN for the torch and the torch_npu of some folders.
#
#   bash tests/npu_simulated/cann/build.sh TORCH TORCH_NPU OUT
#
# OUT/lib is what LD_LIBRARY_PATH names, OUT/toolkit what ASCEND_HOME_PATH names. Nothing is done where OUT is there.
set -euo pipefail
torch=$(realpath "$1") torch_npu=$(realpath "$2") out=$3
cd "$(dirname "${BASH_SOURCE[0]}")"
[[ ! -d "$out" ]] || exit 0

made=$(mktemp -d "$out.XXXX")
trap 'rm -rf "$made"' EXIT
lib=$made/lib
mkdir -p "$lib" "$made/toolkit/runtime" "$made/toolkit/compiler" "$made/toolkit/opp"

# Vendor headers come as system headers: their warnings are not ours.
vendor=(-isystem "$torch_npu/include" -isystem "$torch_npu/include/third_party/acl/inc" -isystem "$torch_npu/include/third_party/hccl/inc")
aten=(-isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" -L"$torch/lib" -ltorch_cpu -lc10)

# library NAME FILE... -- OPTION...: link a shared library of that name.
library() {
    local name=$1 files=()
    shift
    while [[ "${1:---}" != -- ]]; do
        files+=("$1")
        shift
    done
    g++ -std=c++20 -O1 -Wall -fPIC -shared -pthread "${vendor[@]}" "${files[@]}" -o "$lib/lib$name.so" \
        -Wl,-soname,"lib$name.so" -L"$lib" "${@:2}"
}

library ascendcl devices.cpp memory.cpp virtual_memory.cpp streams.cpp graphs.cpp
library hccl hccl.cpp -- -lascendcl
# vllm-ascend looks for a file of this name among those that are loaded.
library vllm_ascend_C sleeping_pool.cpp -- -lascendcl
mv "$lib/libvllm_ascend_C.so" "$lib/vllm_ascend_C.so"
gcc -shared -fPIC options.c -o "$lib/libacl_op_compiler.so" -Wl,-soname,libacl_op_compiler.so
# Two at a time: what includes torch takes ten seconds each.
library simulated_kernels fallback.cpp -- -lascendcl "${aten[@]}" &
library opapi operators.cpp attention.cpp -- -lascendcl "${aten[@]}"
wait $!

python3 symbols.py "$torch_npu" "$torch/lib" "$lib"/lib{ascendcl,hccl,acl_op_compiler}.so >"$made/symbols.c"
gcc -shared -fPIC "$made/symbols.c" -o "$lib/libge_runner.so" -Wl,-soname,libge_runner.so
# torch_npu asks for these files too; what they would have lies in the last one.
for name in graph acl_tdt_channel fmk_parser ascend_protobuf atb; do
    gcc -shared -fPIC -x c /dev/null -o "$lib/lib$name.so" -Wl,-soname,"lib$name.so" -L"$lib" -Wl,--no-as-needed -lge_runner
done

chmod 755 "$made"
mv -T "$made" "$out" 2>/dev/null || [[ -d "$out" ]]
