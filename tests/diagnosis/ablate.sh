#!/usr/bin/env bash
# What the diagnosis is like without each of its vetoes and special rules, and with half and twice of each parameter:
# tests/diagnosis/ablate.sh [--all | NAME...] [--cases N] [--seed S] [--suites LIST] [--tapes DIR]
#
# NAME: a veto (diagnosis/veto.h), a parameter (diagnosis/parameters.inc) or NAME=VALUE; "vetoes", "rules" or "parameters" are all of them.
# Without a NAME vetoes and rules, in minutes; --all: parameters, too, in an hour. Writes a table as Markdown, a row as soon as it
# is known. N cases of each suite (5), whose steps are kept in DIR (build/release/tapes): remove it when the simulator changes.
set -euo pipefail
cd "$(dirname "$0")/../.."

cases=5 seed=4646 suites=all tapes=build/release/tapes names=()
while [ $# -gt 0 ]; do
  case $1 in
    --cases | --seed | --suites | --tapes)
      [ $# -ge 2 ] || { echo "tests/diagnosis/ablate.sh: $1: a value must follow" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    --all)
      names+=(vetoes rules parameters)
      shift
      ;;
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    -*) echo "tests/diagnosis/ablate.sh: unknown argument '$1'; --all, --cases, --seed, --suites and --tapes are known" >&2; exit 2 ;;
    *)
      names+=("$1")
      shift
      ;;
  esac
done
[ ${#names[@]} -gt 0 ] || names=(vetoes rules)

mkdir -p "$tapes"
cmake --preset release >"$tapes/build.log"
cmake --build --preset release --target diagnosis_evaluation >>"$tapes/build.log" || { tail -n 40 "$tapes/build.log" >&2; exit 1; }
build/release/bench/diagnosis_evaluation --suites "$suites" --cases "$cases" --seed "$seed" --tapes "$tapes" --ablate "$(IFS=,; echo "${names[*]}")"
