#!/usr/bin/env bash
# TaskD in ten minutes from a bare machine, in three once it is built: a small distributed PyTorch training whose marks are switched on and off while it runs.
#
#   deploy/quickstart.sh [--stay]     --stay: before the end the job keeps running, with a slow rank, for you to look at
#
# Installs missing Debian packages, builds TaskD where it is not built, and hands over to quickstart/quickstart.py.
# Uses loopback ports that are free, a temporary folder, and leaves nothing running.
set -euo pipefail
cd "$(dirname "$0")/.."
case "$*" in
  '' | --stay) ;;
  -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  *) echo "quickstart.sh: '$*' is not known, only --stay" >&2; exit 2 ;;
esac

echo "1 of 3: Debian packages (at most 1.5 GB on disk with PyTorch; about two minutes where none is there)"
./deploy/install.sh --quickstart
mkdir -p build
echo "2 of 3: building TaskD in build/release (three to seven minutes on two cores the first time; log: build/quickstart-build.log)"
# shellcheck disable=SC2016  # for the inner shell
deploy/logged.sh build/quickstart-build.log bash -c \
  'cmake --preset release && cmake --build --preset release -j "$(nproc)" --target taskd taskd_sdk taskd_python'
echo "3 of 3: the demonstration (one to three minutes)"
exec /usr/bin/python3 -B deploy/quickstart/quickstart.py --build build/release "$@"
