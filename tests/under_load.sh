#!/usr/bin/env bash
# Runs tests of a build beside one busy process for each CPU: tests/under_load.sh [-n TIMES] [-p PRESET] NAME...
#
# NAME is a regular expression for ctest's names (ctest --preset release -N lists them), PRESET a build that is there (release
# unless given). Each run prints ctest's line for each test; a test that fails prints its output and ends everything with 1.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
usage() { echo "tests/under_load.sh: $1; usage: tests/under_load.sh [-n TIMES] [-p PRESET] NAME..." >&2; exit 2; }
times=1 preset=release
while getopts n:p: option; do
  case $option in
    n) times=$OPTARG ;;
    p) preset=$OPTARG ;;
    *) usage "unknown option" ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || usage "no test is named"
[[ $times =~ ^[1-9][0-9]*$ ]] || usage "-n '$times': a number from 1 on"
[ -f "build/$preset/CTestTestfile.cmake" ] || usage "-p '$preset': there is no build/$preset"

busy=()
trap 'kill "${busy[@]}" 2>/dev/null' EXIT
for _ in $(seq "$(nproc)"); do
  sh -c 'while :; do :; done' &
  busy+=($!)
done
names=$(IFS='|'; echo "$*")
for run in $(seq "$times"); do
  echo "run $run of $times"
  ctest --preset "$preset" --no-tests=error -R "$names" || exit 1
done
