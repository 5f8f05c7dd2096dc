#!/usr/bin/env bash
# Evaluates the diagnosis and writes its tables as Markdown: tests/diagnosis/evaluate.sh [--cases N] [--seed S|random] [--out DIR] [--full]
#
# Thresholds were chosen on seeds 1, 2 and 1001; what is published comes from seeds that nobody looked at while choosing them: 7505 unless
# another one is given. Writes DIR/evaluation.md, DIR/evaluation.jsonl (a line a case) and DIR/failures.txt; DIR is
# build/release/evaluation. --full: also as many healthy jobs of days.
set -euo pipefail
cd "$(dirname "$0")/../.."

cases=42 seed=7505 out=build/release/evaluation suites=all
while [ $# -gt 0 ]; do
  case $1 in
    --cases | --seed | --out)
      [ $# -ge 2 ] || { echo "tests/diagnosis/evaluate.sh: $1: a value must follow" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    --full)
      suites=all,quiet
      shift
      ;;
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "tests/diagnosis/evaluate.sh: unknown argument '$1'; --cases, --seed, --out and --full are known" >&2; exit 2 ;;
  esac
done

mkdir -p "$out"
cmake --preset release >"$out/build.log"
cmake --build --preset release --target diagnosis_evaluation >>"$out/build.log" || { tail -n 40 "$out/build.log" >&2; exit 1; }
build/release/bench/diagnosis_evaluation --suites "$suites" --cases "$cases" --seed "$seed" --verbose --out "$out/evaluation.jsonl" \
  >"$out/evaluation.md" 2>"$out/failures.txt" || { tail -n 5 "$out/failures.txt" >&2; exit 1; }
cat "$out/evaluation.md"
