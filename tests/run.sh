#!/usr/bin/env bash
# Builds and tests everything: tests/run.sh [--full]
#
#   1. missing Debian packages are installed          (deploy/install.sh)
#   2. format: clang-format over the C++ sources
#   3. tsan:   the cores under ThreadSanitizer        (without gRPC, which it cannot see into)
#   4. release: every test, end to end included; they mostly wait, so the next two run beside them
#   5. asan:   unit and integration tests of C++ under AddressSanitizer and UndefinedBehaviorSanitizer
#   6. clang-tidy over what was changed
# The last lines are the summary of the tests of release.
#
# Root and ordinary users can start it. Root builds, and does itself what attacks or needs namespaces; everything else is run
# by an ordinary user (as_user.sh). An ordinary user needs the packages to be there (or sudo), and skips what needs root.
#
# --full adds clang-tidy over everything, the slow tests (soak, scale, 100 kills; nothing beside them), tests/hostile against
# daemons under AddressSanitizer and UndefinedBehaviorSanitizer, each fuzz target for 2 to 15 minutes under libFuzzer with the same
# two (as many side by side as there are CPUs), and deploy/Containerfile, built and run (tests/containers.sh; skipped, with
# the reason, where podman cannot).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
umask 022  # the user of the tests reads what root builds

full=false
for argument in "$@"; do
  case $argument in
    --full) full=true ;;
    -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "tests/run.sh: unknown argument '$argument'; only --full is known" >&2; exit 2 ;;
  esac
done
# Tests that start Python start Debian's, whatever comes first in PATH; they must not leave files in the tree.
export PYTHONDONTWRITEBYTECODE=1
unset TASKD_SOCKET TASKD_MANAGER TASKD_TOKEN TASKD_JOB MINDX_TASK_ID MINDX_SERVER_IP POD_IP RANK LD_PRELOAD

jobs=$(nproc)
tests=$((2 * jobs))  # side by side: most of them wait most of the time
failed=()
step() { printf '\n== %s\n' "$1"; }
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

step "format"
sources=$(git ls-files --cached --others --exclude-standard '*.cc' '*.h' '*.c' | while read -r file; do [ -f "$file" ] && echo "$file"; done)
# shellcheck disable=SC2086
clang-format --dry-run -Werror $sources || failure "clang-format (mend with: clang-format -i FILES)"

build() {  # build PRESET
  local log=build/$1.log
  mkdir -p build
  echo "building $1 (log: $log)"
  # shellcheck disable=SC2016  # for the inner shell
  deploy/logged.sh "$log" bash -c 'cmake --preset "$0" && cmake --build --preset "$0" -j "$1"' "$1" "$jobs"
}
run_ctest() {  # run_ctest PRESET CTEST_ARGUMENT...
  local preset=$1
  shift
  ctest --preset "$preset" --no-tests=error -j "$tests" "$@" >"build/$preset-test.log" 2>&1
}
# One line for all tests of a preset, unless one fails.
quiet_ctest() {
  run_ctest "$@"
  local code=$?
  [ $code -eq 0 ] || cat "build/$1-test.log" >&2
  echo "tests of $1: $(grep -E '^[0-9]+% tests passed' "build/$1-test.log")"
  return $code
}
# Job control: Ctrl-C is not ignored in what runs beside, and a group of its own ends at once.
beside() { set -m; "$@" & set +m; }
tsan_tests='' release_tests=''
trap 'kill ${tsan_tests:+-- "-$tsan_tests"} ${release_tests:+-- "-$release_tests"} 2>/dev/null' EXIT

step "tsan"
if build tsan; then
  beside quiet_ctest tsan -LE slow
  tsan_tests=$!
else
  failure "build tsan"
fi

step "release"
build release || { failure "build release"; exit 1; }
[ -z "$tsan_tests" ] || wait "$tsan_tests" || failure "tests under ThreadSanitizer"
if ! $full; then
  echo "tests of release run beside what follows (log: build/release-test.log)"
  beside run_ctest release -LE slow
  release_tests=$!
  renice -n 19 $$ >/dev/null  # they come first
fi

step "asan"
if build asan; then
  quiet_ctest asan -LE 'slow|e2e' || failure "tests under AddressSanitizer"
  # Side by side as CPUs there are: these daemons work more than they wait.
  ! $full || quiet_ctest asan -R '^hostile_' -LE slow -j "$jobs" || failure "tests/hostile against daemons under AddressSanitizer"
else
  failure "build asan"
fi

# Against where this branch left its upstream; on it, against the commit before.
changed_sources() {
  local base
  base=$(git merge-base HEAD '@{upstream}' 2>/dev/null)
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then base=HEAD~1; fi
  git diff --name-only --diff-filter=d "$base" -- '*.cc' 2>/dev/null
}
step "clang-tidy"
if $full; then
  checked=$(echo "$sources" | grep '\.cc$')
else
  checked=$(changed_sources | head -n 20)  # a change of everything is for --full
fi
if [ -n "$checked" ]; then
  tests/source_commands.py build/release build/tidy || failure "compile commands for clang-tidy"
  # shellcheck disable=SC2001,SC2046
  run-clang-tidy -quiet -p build/tidy -j "$jobs" $(echo "$checked" | sed "s|.*|^$PWD/&\$|") >build/tidy.log 2>&1 ||
    { grep -aE 'error:|warning:' build/tidy.log | head -n 40 >&2; failure "clang-tidy (whole log: build/tidy.log)"; }
fi

if $full; then
  step "fuzz"
  if build fuzz; then
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
if $full; then
  echo "slow ones too (log: build/release-test.log)"
  run_ctest release || failure "tests in release"
else
  wait "$release_tests" || failure "tests in release"
fi
echo "skipped, and why:"
skipped_and_why tsan asan release
cat build/release-test.log
# Below its summary ctest names programs that skipped all of their tests.
! grep -q '^The following tests did not run' build/release-test.log ||
  grep -E '^[0-9]+% tests passed|^Total Test time' build/release-test.log
if [ "${#failed[@]}" -gt 0 ]; then
  printf '\ntests/run.sh: %d part(s) failed:\n' "${#failed[@]}" >&2
  printf '  %s\n' "${failed[@]}" >&2
  exit 1
fi
