#!/bin/bash
# Marks against LTTng-UST events with the same string, in one run of one program.
#
#   tests/bench/mark_vs_lttng.sh [BUILD_DIR]        (default: build/release)
#
# Starts an LTTng session daemon of its own with its own home: a session in overwrite mode (a flight recorder like the
# rings), 4 sub-buffers of 1 MiB a CPU. Ends and removes all of it. Needs lttng-tools and liblttng-ust-dev.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$root/build/release}" && pwd)
program=$build/bench/mark_benchmark_lttng

for command in lttng lttng-sessiond; do
  if ! command -v "$command" >/dev/null; then
    echo "mark_vs_lttng: $command is not installed (Debian: lttng-tools)" >&2
    exit 1
  fi
done
if [[ ! -x $program ]]; then
  echo "mark_vs_lttng: $program was not built (Debian: liblttng-ust-dev; then build the target mark_benchmark_lttng)" >&2
  exit 1
fi

home=$(mktemp -d)
daemon=
# What LTTng itself leaves in shared memory, if it was not there before.
wait_files=()
for file in /dev/shm/lttng-ust-wait-8 "/dev/shm/lttng-ust-wait-8-$(id -u)"; do
  [[ -e $file ]] || wait_files+=("$file")
done
finish() {
  lttng destroy --all >/dev/null 2>&1 || true
  if [[ -n $daemon ]]; then
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
  fi
  rm -rf "$home" "${wait_files[@]}"
}
trap finish EXIT

# As root the session daemon would use the machine's own paths: everything is given by hand.
export LTTNG_HOME=$home
export LTTNG_RUNDIR=$home/run
mkdir -p "$home/run"
lttng-sessiond --no-kernel --quiet &
daemon=$!
for _ in $(seq 100); do
  lttng list >/dev/null 2>&1 && break
  kill -0 "$daemon" 2>/dev/null || { echo "mark_vs_lttng: lttng-sessiond did not start" >&2; exit 1; }
  sleep 0.1
done

lttng create marks --snapshot --output="$home/out" >/dev/null
lttng enable-channel --userspace --overwrite --subbuf-size=1M --num-subbuf=4 channel >/dev/null
lttng enable-event --userspace --channel=channel 'taskd_bench:*' >/dev/null
lttng start >/dev/null

# The program waits for the session daemon before main, so the events are on when the first benchmark runs.
LTTNG_UST_REGISTER_TIMEOUT=-1 "$program" "${@:2}"
