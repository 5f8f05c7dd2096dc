#!/usr/bin/env bash
# Builds and tests what a change can have broken, or everything: tests/run.sh [--since REV] [--full]
#
#   1. installs missing Debian packages                (deploy/install.sh)
#   2. format:  clang-format 14 over the C++ sources; another release formats differently, so it is skipped
#   3. release: builds what users run, and runs the end-to-end tests and those of the Python package
#   4. tsan:    tests of the cores under ThreadSanitizer (without gRPC, which it cannot see into)
#   5. asan:    unit and integration tests of C++ under AddressSanitizer and UndefinedBehaviorSanitizer
#   6. clang-tidy 14 over what was changed
#
# Steps 4 to 6 run beside the tests of step 3, which mostly wait. Steps 4 and 5 run the tests of the folders that a change can
# have affected, and step 3 leaves out groups of end-to-end tests that no change can have affected: tests/affected.py says
# what counts as a change (--since REV: all that differs from REV). A change of common/ or of a CMake file affects everything.
#
# An end-to-end test that fails runs once more at the end, alone. If it passes then, the last lines name it as flaky. More than
# two fail the run; unit tests and the sanitizers' runs have no second try. The last lines are the summary of step 3.
#
# Root and ordinary users can start it. Root builds, and runs the tests that attack or need namespaces; an ordinary user runs all
# others (as_user.sh). Without root the packages have to be there (or sudo), and tests that need root are skipped.
#
# --full tests everything in every build, whatever was changed: clang-tidy over all sources, the slow tests (soak, scale, 100 kills;
# with no other test beside them), tests/hostile against daemons under AddressSanitizer and UndefinedBehaviorSanitizer, each fuzz
# target for 2 to 15 minutes under libFuzzer with the same two (as many side by side as there are CPUs), and deploy/Containerfile,
# built and run (tests/containers.sh; skipped, with the reason, where podman cannot).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
umask 022  # the user of the tests reads what root builds

full=false since=()
usage() { echo "tests/run.sh: $1; --since REV and --full are known" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --full) full=true ;;
    --since) [ $# -ge 2 ] || usage "--since needs a commit"; since=(--since "$2"); shift ;;
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) usage "unknown argument '$1'" ;;
  esac
  shift
done
affected() { tests/affected.py "${since[@]}" "$1"; }
[ ${#since[@]} -eq 0 ] || affected sources >/dev/null || exit 2
# Tests that start Python start Debian's, whatever comes first in PATH; they must not leave files in the tree.
export PYTHONDONTWRITEBYTECODE=1
export GTEST_BRIEF=1  # failures, not each test that passes
unset TASKD_SOCKET TASKD_MANAGER TASKD_TOKEN TASKD_JOB MINDX_TASK_ID MINDX_SERVER_IP POD_IP RANK LD_PRELOAD

jobs=$(nproc)
tests=$((4 * jobs))  # side by side: most of them wait most of the time
failed=() why=()
step() { printf '\n== %s (%d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }  # when it begins
failure() { failed+=("$1"); echo "FAILED: $1" >&2; }

step "packages"
./deploy/install.sh || exit 1
# What drives the browser in tests/browser; without it they are skipped, and their line says why.
playwright=build/browser/node_modules/playwright-core
[ -d $playwright ] || npm install --silent --prefix build/browser --no-package-lock playwright-core@1.65.1 ||
  echo "playwright-core is not there, and npm could not fetch it: the page's tests are skipped" >&2

# Prometheus and its checker, unpacked and not installed: the package would start a service. Without it the same holds.
prometheus=build/prometheus
if ! command -v promtool >/dev/null && [ ! -x $prometheus/usr/bin/promtool ]; then
  { mkdir -p $prometheus && (cd $prometheus && apt-get -qq download prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb); } \
    >/dev/null 2>&1 || echo "Debian's package prometheus cannot be fetched: the tests of /metrics that need it are skipped" >&2
fi

step "user"
if [ $EUID -eq 0 ]; then
  echo "tests that do not need root are run by user $(tests/as_user.sh id -u)"
else
  echo "tests are run by user $(id -u); those that need root are skipped"
fi

# One release decides how sources are formatted and what clang-tidy finds: Debian 12's.
llvm=14
clang_tool() {  # clang_tool NAME: its command in that release, or nothing
  if command -v "$1-$llvm"; then return; fi
  ! "$1" --version 2>/dev/null | grep -q "version $llvm\." || command -v "$1"
}

step "format"
sources=$(git ls-files --cached --others --exclude-standard '*.cc' '*.h' '*.c' | while read -r file; do [ -f "$file" ] && echo "$file"; done)
clang_format=$(clang_tool clang-format)
if [ -n "$clang_format" ]; then
  # shellcheck disable=SC2086
  "$clang_format" --dry-run -Werror $sources || failure "clang-format (mend with: $clang_format -i FILES)"
else
  echo "skipped: there is no clang-format $llvm here, and other releases format differently"
fi

build() {  # build PRESET [TARGET...]
  local preset=$1 log=build/$1.log
  shift
  echo "building $preset (log: $log)"
  # shellcheck disable=SC2016  # for the inner shell
  deploy/logged.sh "$log" bash -c 'preset=$1 jobs=$2 && shift 2 && cmake --build --preset "$preset" -j "$jobs" ${1:+--target} "$@"' \
    build "$preset" "$jobs" "$@"
}
configure() {
  mkdir -p build
  deploy/logged.sh "build/$1.log" cmake --preset "$1" || { failure "configure $1"; return 1; }
}
run_ctest() {  # run_ctest PRESET CTEST_ARGUMENT...
  local preset=$1
  shift
  ctest --preset "$preset" --no-tests=error -j "$tests" "$@" >"build/$preset-test.log" 2>&1
}
# reasons LOG: the lines of a log that say why a test failed, for the summary.
reasons() {
  grep -aE -A4 ': Failure$|: ERROR: |: WARNING: ThreadSanitizer|: runtime error: |^terminate called|^(FAILED|ERROR) |^The following tests F' "$1" |
    head -n 40
}
# One line for all tests of a preset, unless one fails.
quiet_ctest() {
  run_ctest "$@"
  local code=$?
  [ $code -eq 0 ] || { cat "build/$1-test.log" >&2; why+=("$(reasons "build/$1-test.log")"); }
  echo "tests of $1: $(grep -E '^[0-9]+% tests passed' "build/$1-test.log")"
  return $code
}
# programs_of PRESET CTEST_ARGUMENT...: the programs in C++ of these tests. A program that root runs once more has one name.
programs_of() {
  local preset=$1
  shift
  ctest --preset "$preset" -N "$@" | sed -nE 's/^ *Test +#[0-9]+: (.*)$/\1/p' | sed 's/_root$//' | sort -u
}

step "what is affected"
affected_tests='^in:' unneeded=''
if ! $full; then
  affected_tests=$(affected tests) || exit 1
  unneeded=$(affected unneeded) || exit 1
fi
case $affected_tests in
  '') echo "no source in C++ has changed: no tests under the sanitizers" ;;
  '^in:') echo "the tests of all folders" ;;
  *) echo "the tests of $(echo "$affected_tests" | sed -E 's/\^in:|\(.\|\$\)|\$//g; s/\|/ /g')" ;;
esac
[ -z "$unneeded" ] || echo "left out: $unneeded"
[ -z "$affected_tests" ] || tests=$((2 * jobs))  # builds and tests under the sanitizers take the CPUs meanwhile

for preset in release tsan asan; do configure "$preset" || exit 1; done

step "release"
if $full; then
  build release || { failure "build release"; exit 1; }
else
  # Tests in C++ run under the sanitizers; here only those that have no sanitizer.
  left_out='slow|^in:' programs=()
  if [ -n "$affected_tests" ]; then
    mapfile -t programs < <(programs_of release -L unsanitized)
  else
    left_out+='|unsanitized'
  fi
  build release e2e_programs "${programs[@]}" || { failure "build release"; exit 1; }
  echo "tests of release run beside what follows (log: build/release-test.log)"
  # Job control: Ctrl-C is not ignored in what runs beside, and a group of its own ends at once.
  set -m
  run_ctest release -LE "$left_out" -E "${unneeded:-^$}" &
  release_tests=$!
  set +m
  trap 'kill -- "-$release_tests" 2>/dev/null' EXIT
  renice -n 19 $$ >/dev/null  # they come first
fi

for preset in tsan asan; do
  step "$preset"
  if $full; then
    if build $preset; then quiet_ctest $preset -LE 'slow|e2e' || failure "tests of $preset"; else failure "build $preset"; fi
  elif [ -n "$affected_tests" ]; then
    mapfile -t programs < <(programs_of $preset -L "$affected_tests" -LE slow)
    if [ ${#programs[@]} -eq 0 ]; then
      echo "no test of these folders"
    elif build $preset "${programs[@]}"; then
      quiet_ctest $preset -L "$affected_tests" -LE slow || failure "tests of $preset"
    else
      failure "build $preset"
    fi
  fi
done
if $full; then  # side by side as CPUs there are: these daemons work more than they wait
  quiet_ctest asan -R '^hostile_' -LE slow -j "$jobs" || failure "tests/hostile against daemons under AddressSanitizer"
fi

step "clang-tidy"
if $full; then
  checked=$(echo "$sources" | grep '\.cc$')
else
  checked=$(affected sources | grep -v '_test\.cc$' | sed -n 1,10p)  # half a minute each: tests, and a change of everything, are for --full
fi
if [ -z "$(clang_tool clang-tidy)" ]; then
  echo "skipped: there is no clang-tidy $llvm here, and other releases find other things"
elif [ -n "$checked" ]; then
  tests/source_commands.py build/release build/tidy || failure "compile commands for clang-tidy"
  # shellcheck disable=SC2001,SC2046
  "$(clang_tool run-clang-tidy || echo run-clang-tidy)" -quiet -clang-tidy-binary "$(clang_tool clang-tidy)" -p build/tidy -j "$jobs" \
    $(echo "$checked" | sed "s|.*|^$PWD/&\$|") >build/tidy.log 2>&1 ||
    { grep -aE 'error:|warning:' build/tidy.log | head -n 40 >&2; failure "clang-tidy (whole log: build/tidy.log)"; }
fi

if $full; then
  step "fuzz"
  if configure fuzz && build fuzz; then
    quiet_ctest fuzz -L fuzz_long || failure "fuzz targets (inputs: build/fuzz/fuzz/*_fuzz.crash-*)"
  else
    failure "build fuzz"
  fi

  step "containers"
  tests/containers.sh || failure "containers (logs: build/containers)"
fi

# How many tests of the presets were skipped, and why, by pytest and by GoogleTest.
skipped_and_why() {
  local preset logs=()
  for preset in "$@"; do
    [ ! -f "build/$preset/Testing/Temporary/LastTest.log" ] || logs+=("build/$preset/Testing/Temporary/LastTest.log")
  done
  awk '/^SKIPPED \[[0-9]+\] / { n = substr($2, 2) + 0; sub(/^SKIPPED \[[0-9]+\] [^:]*(:[0-9]+)?: /, ""); count[$0] += n }
       /: Skipped$/ { getline; count[$0]++ }
       END { for (why in count) printf "%6d  %s\n", count[why], why }' "${logs[@]}" </dev/null | sort -k 2
}

# The last thing that a reader sees is the summary of the main run, unless something else went wrong.
step "tests of release"
flaky=
if $full; then
  echo "slow ones too (log: build/release-test.log)"
  run_ctest release
else
  wait "$release_tests"
fi
release_code=$?
echo "skipped, and why:"
skipped_and_why tsan asan release
cat build/release-test.log
if [ $release_code -ne 0 ]; then
  step "second try"
  flaky=$(tests/second_try.sh build/release build/release-test.log) || failure "tests in release"
  flaky+=$'\n'$(reasons build/release-test.log)
fi
# Below its summary ctest names programs that skipped all of their tests.
! grep -q '^The following tests did not run' build/release-test.log ||
  grep -E '^[0-9]+% tests passed|^Total Test time' build/release-test.log
[ -z "$flaky" ] || printf '\n%s\n' "$flaky"
if [ "${#failed[@]}" -gt 0 ]; then
  printf '\ntests/run.sh: %d part(s) failed:\n' "${#failed[@]}" >&2
  printf '  %s\n' "${failed[@]}" "${why[@]}" >&2
  exit 1
fi
