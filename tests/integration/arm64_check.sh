#!/bin/bash
# What is loaded into training, for arm64: cross-compiles libtaskd.so, the NCCL plugin and the Python extension as the
# build does, checks what they need and show, and runs the recorder's tests under qemu's user emulation, among them the
# ring's with its reader and several threads. Exit code 77 (skipped in ctest) where the tools are missing.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
sysroot=/usr/aarch64-linux-gnu
emulator=qemu-aarch64-static
gtest=/usr/src/googletest/googletest
for tool in aarch64-linux-gnu-g++ aarch64-linux-gnu-gcc "$emulator" make; do
  if ! command -v "$tool" >/dev/null; then
    echo "arm64_check: skipped, $tool is not installed (Debian: g++-aarch64-linux-gnu, qemu-user-static, make)"
    exit 77
  fi
done
python=/usr/bin/python3
[[ -x $python ]] || python=python3
python_include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
if [[ ! -e $python_include/Python.h || ! -e /usr/include/x86_64-linux-gnu/${python_include##*/}/pyconfig.h ]]; then
  echo "arm64_check: without the Python extension, there are no headers for it (Debian: python3-dev)"
  python_include=
fi
if [[ ! -e $gtest/src/gtest-all.cc ]]; then
  echo "arm64_check: without the tests that need GoogleTest's sources (Debian: googletest)"
  gtest=
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
make -s -j"$(nproc)" -f "$root/tests/integration/arm64_build.mk" -C "$out" ROOT="$root" GTEST="$gtest" \
  PYTHON_INCLUDE="$python_include"

libraries=("$out"/*.so)
"$python" "$root/tests/lib/symbol_floor.py" --readelf aarch64-linux-gnu-readelf "${libraries[@]}"
exported=$(aarch64-linux-gnu-nm -D --defined-only "$out/libtaskd.so" | grep -vc TASKD_NCCL_CALLS)
if [[ $exported != 46 ]]; then
  echo "arm64_check: libtaskd.so shows $exported symbols besides NCCL's, not 46" >&2
  exit 1
fi

emulated=("$emulator" -L "$sysroot" -E "LD_LIBRARY_PATH=$out")
TASKD_SOCKET=$out/proxy.sock "${emulated[@]}" "$out/smoke"
# These start themselves again, each test in a process of its own.
export GTEST_BRIEF=1 TASKD_TEST_EMULATOR="$emulator -L $sysroot"
for test in "$out"/*_test; do
  if ! "${emulated[@]}" "$test" >"$out/log" 2>&1; then
    cat "$out/log" >&2
    echo "arm64_check: ${test##*/} failed" >&2
    exit 1
  fi
  echo "arm64_check: ${test##*/}: $(grep '^\[==========\] .* ran' "$out/log" | tail -n 1)"
done
