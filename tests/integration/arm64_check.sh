#!/bin/bash
# libtaskd.so for arm64: cross-compiles it as the build does, checks what it needs and shows, and runs a small program on
# it under qemu's user emulation. Exit code 77 (skipped in ctest) where the tools are missing.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
compiler=aarch64-linux-gnu-g++
emulator=qemu-aarch64-static
for tool in "$compiler" "$emulator" aarch64-linux-gnu-gcc; do
  if ! command -v "$tool" >/dev/null; then
    echo "arm64_check: skipped, $tool is not installed (Debian: g++-aarch64-linux-gnu, qemu-user-static)"
    exit 77
  fi
done

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
source=$root/worker_sdk/src

# The flags of worker_sdk/CMakeLists.txt and cmake/hardening.cmake.
hardening="-fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2"
for file in api clock domains hello_client legacy mark_names mspti_feed mstx next_mstx nvtx nvtx_ranges nvtx_strings \
    primary recorder segment stack_dump; do
  "$compiler" -std=c++20 -O2 $hardening -Wall -Wextra -Werror -fPIC -fvisibility=hidden -fvisibility-inlines-hidden \
    -fno-exceptions -fno-rtti -fno-threadsafe-statics -ftls-model=initial-exec -I "$root/worker_sdk/include" \
    -c "$source/$file.cc" -o "$out/$file.o"
done
aarch64-linux-gnu-gcc -std=gnu11 -O2 $hardening -Wall -Wextra -Werror -fPIC -fvisibility=hidden -ftls-model=initial-exec \
  -I "$root/worker_sdk/include" -c "$source/mspti.c" -o "$out/mspti.o"
aarch64-linux-gnu-gcc -shared -o "$out/libtaskd.so" "$out"/*.o -Wl,-soname,libtaskd.so -Wl,--as-needed -static-libgcc \
  -Wl,-z,defs -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro -Wl,--version-script="$source/libtaskd.map"

needed=$(aarch64-linux-gnu-readelf -dW "$out/libtaskd.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | tr '\n' ' ')
# The canary of arm64 lies in libc's own loader.
if [[ $needed != "libc.so.6 ld-linux-aarch64.so.1 " ]]; then
  echo "arm64_check: libtaskd.so needs '$needed', only libc.so.6 and its loader are allowed" >&2
  exit 1
fi
exported=$(aarch64-linux-gnu-nm -D --defined-only "$out/libtaskd.so" | wc -l)
if [[ $exported != 31 ]]; then
  echo "arm64_check: libtaskd.so shows $exported symbols, not 31" >&2
  exit 1
fi

"$compiler" -std=c++20 -O2 -Wall -Wextra -Werror -I "$root/worker_sdk/include" -I "$source" \
  "$root/tests/integration/arm64_smoke.cc" "$source/testing/segment_view.cc" -o "$out/smoke" -L "$out" -ltaskd
TASKD_SOCKET=$out/proxy.sock "$emulator" -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$out" "$out/smoke"
