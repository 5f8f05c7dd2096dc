#!/usr/bin/env bash
# TaskD on Debian's releases: tests/distros.sh [--wheels FOLDER] [NAME...]
#                             tests/distros.sh --source [NAME...]
#
# NAME: bullseye, bookworm, trixie, forky, bookworm-arm64 (under QEMU); all of them by default. For each, a root filesystem
# is made with debootstrap from the mirror of /etc/apt, once, with PyTorch where the release has it, and kept in
# ${TASKD_ROOTFS:-/var/cache/taskd-rootfs} (all five: 7 GB). In it tests/distros/scenario.py installs the wheel, runs TaskD,
# and uninstalls. At the end there is one table, a line for each; the exit code is 1 if any failed. Logs: build/distros.
#
# The wheels are dist/*.whl, made by deploy/wheels.sh where they are older than the sources, or those in FOLDER.
#
# --source builds from source instead, in copies of bookworm and trixie, with GCC and on trixie with Clang, too; warnings are
# errors; and runs the unit tests. What is built is kept beside the root filesystems (another 8 GB).
#
# Needs root, debootstrap, qemu-user-static for arm64, and 10 to 40 minutes, most of it for making the root filesystems;
# --source 20 to 90 minutes.
set -euo pipefail
from=$PWD
cd "$(dirname "$0")/.."

known=(bullseye bookworm trixie forky bookworm-arm64)
source=false
wheels=
names=()
while [ $# -gt 0 ]; do
  case $1 in
    --source) source=true; known=(bookworm trixie) ;;
    --wheels)
      wheels=$(cd "$from" && cd "${2:?--wheels needs a folder}" && pwd)
      shift ;;
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *)
      case " ${known[*]} " in
        *" $1 "*) names+=("$1") ;;
        *) echo "tests/distros.sh: '$1' is not ${known[*]}" >&2; exit 2 ;;
      esac ;;
  esac
  shift
done
[ ${#names[@]} -gt 0 ] || names=("${known[@]}")
[ "$(uname -m)" = x86_64 ] || { echo "tests/distros.sh: is for x86_64" >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "tests/distros.sh: needs root, for chroot and mounts" >&2; exit 2; }
for program in debootstrap unshare ip; do
  command -v "$program" >/dev/null || { echo "tests/distros.sh: there is no $program here" >&2; exit 2; }
done

logs=$PWD/build/distros
mkdir -p "$logs"
cache=${TASKD_ROOTFS:-/var/cache/taskd-rootfs}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)

# --- wheels

wheel_of() { find "$1" -maxdepth 1 -name "taskd-*$2.whl" | sort | tail -n 1; }  # FOLDER MACHINE
machine_of() { case $1 in *-arm64) echo aarch64 ;; *) echo x86_64 ;; esac; }
is_current() {  # WHEEL: newer than all that goes into it
  [ -n "$1" ] && git ls-files -z -- ':!tests' ':!docs' ':!*.md' | while IFS= read -r -d '' file; do
    if [ "$file" -nt "$1" ]; then return 1; fi
  done
}
if [ -z "$wheels" ] && ! $source; then
  wheels=$PWD/dist
  mkdir -p "$wheels"
  for name in "${names[@]}"; do
    machine=$(machine_of "$name")
    is_current "$(wheel_of "$wheels" "$machine")" && continue
    echo "makes the wheel for $machine (log: build/distros/wheels.log)"
    ./deploy/wheels.sh --arch "$machine" >"$logs/wheels.log" 2>&1 || { tail -n 20 "$logs/wheels.log" >&2; exit 1; }
  done
fi

# --- what has to end and to go with this script

# A script that is in a namespace of its own: with its unshare all that it started ends, but that takes no SIGTERM.
inside=
in_namespace() {
  "$@" &
  inside=$!
  local code=0
  wait "$inside" || code=$?
  inside=
  return $code
}

binfmt=
registered=
mounted=
# shellcheck disable=SC2317  # called by the trap
restore() {
  if [ -n "$inside" ]; then
    kill -KILL "$inside"
    wait "$inside" || true
  fi
  if [ -e "$registered" ]; then echo -1 >"$registered"; fi
  if [ -n "$mounted" ]; then umount "$binfmt"; rmdir "$binfmt"; fi
}
trap restore EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- programs of other processors

# The kernel has QEMU open from then on, so that chroots need no copy (flag F).
register_qemu() {
  [ -z "$binfmt" ] || return 0
  binfmt=/proc/sys/fs/binfmt_misc
  if [ ! -e "$binfmt/register" ]; then
    binfmt=$(mktemp -d)
    mount -t binfmt_misc binfmt_misc "$binfmt"
    mounted=yes
  fi
  local entry
  for entry in "$binfmt"/*; do
    case $(cat "$entry" 2>/dev/null || true) in
      enabled*flags:*F*magic\ 7f454c460201*b700*) return 0 ;;
    esac
  done
  local qemu
  qemu=$(command -v qemu-aarch64-static) || { echo "tests/distros.sh: there is no qemu-aarch64-static here" >&2; exit 2; }
  # 64 bits, little endian, executable or shared object, EM_AARCH64
  printf '%s' ":taskd-qemu-aarch64:M::\\x7fELF\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\xb7\\x00:" \
    "\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff:$qemu:PF" \
    >"$binfmt/register"
  registered=$binfmt/taskd-qemu-aarch64
}

# --- root filesystems

# The Debian mirror of this machine: the first one that is not for security updates.
mirror() {
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    awk '/^(deb|URIs:) / { for (i = 2; i <= NF; ++i) if (!found && $i ~ /\/debian\/?$/) { print $i; found = 1 } }' || true
}

# A root filesystem is as good as the recipe that it was made by. Nobody makes it again while a run uses it.
make_root() {  # NAME
  local root=$cache/$1 recipe architecture=amd64
  case $1 in *-arm64) architecture=arm64 ;; esac
  recipe=$(sha256sum <tests/distros/make_root.sh)
  exec 9>"$root.lock"
  flock -s 9
  [ "$(cat "$root.made" 2>/dev/null)" != "$recipe" ] || return 0
  flock 9
  if [ "$(cat "$root.made" 2>/dev/null)" != "$recipe" ]; then
    echo "making the root filesystem $root (log: build/distros/$1.root.log)"
    rm -f "$root.made"
    in_namespace tests/distros/make_root.sh "${1%-arm64}" "$architecture" "$root" "$mirror" >"$logs/$1.root.log" 2>&1 ||
      return 1
    printf '%s\n' "$recipe" >"$root.made"
  fi
  flock -s 9
}

mirror=$(mirror)
[ -n "$mirror" ] || { echo "tests/distros.sh: no Debian mirror is named in /etc/apt" >&2; exit 2; }

minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

failed=0
rows=()
fail() { row "$@"; failed=1; }

# --- from source

build() {  # NAME COMPILER
  local folder=$cache/$1-source log=$logs/$1-$2.log version tests
  mkdir -p "$folder/tree"
  exec 8>"$folder/lock"
  flock 8
  # Packages were added above one root filesystem, and fit no other one.
  cmp -s "$cache/$1.made" "$folder/made" || rm -rf "$folder"/{upper,work}
  cp "$cache/$1.made" "$folder/made"
  # The times of the files go with them, so that a second build builds what is new.
  find "$folder/tree" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
  git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    if [ -e "$file" ]; then printf '%s\0' "$file"; fi
  done | tar -c --null -T - | tar -x -C "$folder/tree"
  echo "$1: builds with $2 (log: build/distros/$1-$2.log)"
  SECONDS=0
  if in_namespace tests/distros/build_in_root.sh "$cache/$1" "$folder" "$2" >"$log" 2>&1; then result=passed; else result=FAILED; failed=1; fi
  version=$(grep -m 1 -E '^(g\+\+|.*clang version)' "$log" | grep -o -m 1 '[0-9]\+\.[0-9.]\+' | head -n 1)
  tests=$(grep -E '^[0-9]+% tests passed' "$log" || grep -c '^FAILED: ' "$log" | sed 's/$/ do not build/')
  row "$1" "$2" "${version:--}" "$(minutes $SECONDS)" "$result: $tests"
}

if $source; then
  row() { rows+=("$(printf '%-13s %-9s %-8s %-6s %s' "$@")"); }
  row distribution compiler version took result
  for name in "${names[@]}"; do
    if ! make_root "$name"; then
      fail "$name" - - - "FAILED: no root filesystem, see $logs/$name.root.log"
      continue
    fi
    build "$name" gcc
    case $name in trixie) build "$name" clang ;; esac
  done
  printf '\n'
  printf '%s\n' "${rows[@]}"
  exit $failed
fi

# --- the wheel

row() { rows+=("$(printf '%-15s %-6s %-8s %-9s %-6s %-6s %s' "$@")"); }
row distribution glibc Python PyTorch made ran result
for name in "${names[@]}"; do
  SECONDS=0
  case $name in *-arm64) register_qemu ;; esac
  if ! make_root "$name"; then
    fail "$name" - - - "$(minutes $SECONDS)" - "FAILED: no root filesystem, see $logs/$name.root.log"
    continue
  fi
  made=$SECONDS
  wheel=$(wheel_of "$wheels" "$(machine_of "$name")")
  if [ -z "$wheel" ]; then
    fail "$name" - - - "$(minutes $made)" - "FAILED: no wheel for $(machine_of "$name") in $wheels"
    continue
  fi
  echo "$name: $(basename "$wheel") (log: build/distros/$name.log)"
  out=$logs/$name.out
  rm -rf "$out"
  mkdir "$out"
  in_namespace tests/distros/run_in_root.sh "$cache/$name" "$wheel" "$out" >"$logs/$name.log" 2>&1 || failed=1
  result=
  if [ -e "$out/result" ]; then IFS=$'\t' read -r glibc python torch passed result <"$out/result"; fi
  rm -rf "$out"
  if [ -n "$result" ]; then
    row "$name" "$glibc" "$python" "$torch" "$(minutes $made)" "$(minutes $((SECONDS - made)))" "$result: $passed"
  else
    fail "$name" - - - "$(minutes $made)" "$(minutes $((SECONDS - made)))" "FAILED: did not end, see $logs/$name.log"
  fi
  grep -A 5 '^FAILED' "$logs/$name.log" >&2 || true
done
printf '\n'
printf '%s\n' "${rows[@]}"
exit $failed
