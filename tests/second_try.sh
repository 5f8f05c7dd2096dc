#!/usr/bin/env bash
# Runs the end-to-end tests that failed in ctest's last run once more, alone: tests/second_try.sh BUILD LOG
#
# BUILD is a build folder. LOG is the log of that run; what each failed test printed is kept beside it, in LOG.TEST. Prints
# "flaky: N (TEST...)" and returns 0 if every failed test passes now. Returns 1 without a second try where it would be none: no
# test failed, one of them is no end-to-end test, or more than two failed, and 1 if one fails again.
set -u
build=$1 log=$2
most=2
temporary=$build/Testing/Temporary

mapfile -t failed < <(sed -n 's/^[0-9]*://p' "$temporary/LastTestsFailed.log" 2>/dev/null)
if [ ${#failed[@]} -eq 0 ]; then
  echo "second_try.sh: the run failed, but ctest names no failed test" >&2
  exit 1
fi
for test in "${failed[@]}"; do  # first of all: each start of ctest begins this file anew
  awk -v "test=$test" '/^[0-9]+\/[0-9]+ Test(ing)?: / { here = $NF == test } here' "$temporary/LastTest.log" >"$log.$test"
done
names="^($(IFS='|'; echo "${failed[*]}"))\$"
end_to_end=$(ctest --test-dir "$build" -N -L '^e2e$' -R "$names" 2>/dev/null | sed -n 's/^Total Tests: //p')
if [ ${#failed[@]} -gt $most ] || [ "$end_to_end" != ${#failed[@]} ]; then
  echo "no second try: it is for up to $most failed end-to-end tests, and these failed: ${failed[*]}" >&2
  exit 1
fi
if ! ctest --test-dir "$build" -R "$names" -j 1 --output-on-failure >"$log.second-try" 2>&1; then
  cat "$log.second-try" >&2
  echo "failed twice: see $log.second-try, and for the first time $log.TEST" >&2
  exit 1
fi
echo "flaky: ${#failed[@]} (${failed[*]}); the first failure's output: $log.TEST"
