#!/usr/bin/env bash
# deploy/Containerfile for real: tests/containers.sh
#
# Builds both of its stages with podman, on an image of Debian 12 that debootstrap makes from the mirror of /etc/apt, and runs
# the result: a job of two ranks, as root inside and as user 1000 with a read-only root, without capabilities and with
# 64 MiB of /dev/shm; a job that is stopped; a rank that the kernel kills for memory. At the end there is one table with
# what each took; the exit code is 1 if any failed. Logs: build/containers.
#
# The images are kept in ${TASKD_ROOTFS:-/var/cache/taskd-rootfs}/containers, apart from podman's own; the stage that
# compiles is made anew when a source has changed. Needs root, podman, crun and debootstrap; where podman cannot run
# containers it says why and does nothing, with exit code 0. 33 minutes on 2 cores, most of it to compile.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() { echo "tests/containers.sh: skipped: $1"; exit 0; }
case ${1-} in
  '') ;;
  -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  *) echo "tests/containers.sh: unknown argument '$1'" >&2; exit 2 ;;
esac
[ "$(id -u)" -eq 0 ] || skip "needs root, for debootstrap; this is user $(id -u)"
for program in podman crun debootstrap unshare; do
  command -v "$program" >/dev/null || skip "there is no $program here"
done
# crun 1.8 refuses a hierarchy of cgroup v2 beside those of v1: hidden from it in a namespace of this script's own.
if [ "${TASKD_CONTAINERS_INSIDE-}" != yes ]; then
  probe=$(unshare --mount true 2>&1) || skip "no mount namespace: $probe"
  TASKD_CONTAINERS_INSIDE=yes exec unshare --mount "$0" "$@"
fi
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi

logs=$PWD/build/containers
mkdir -p "$logs"
cache=${TASKD_ROOTFS:-/var/cache/taskd-rootfs}/containers
mkdir -p "$cache"
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
# podman remembers its second folder: it has to be the same each time.
podman() { command podman --root "$cache/storage" --runroot /run/taskd-containers --cgroup-manager cgroupfs "$@"; }

table=()
failed=0
step() {  # NAME COMMAND...: its time and result into the table, its output into a log
  local name=$1 began=$SECONDS log
  shift
  log=$logs/${name// /-}.log
  echo "$name (log: build/containers/${name// /-}.log)"
  if "$@" >"$log" 2>&1; then
    table+=("$(printf '%-44s %5d s  passed' "$name" $((SECONDS - began)))")
  else
    table+=("$(printf '%-44s %5d s  FAILED' "$name" $((SECONDS - began)))")
    tail -n 20 "$log" >&2
    failed=1
    return 1
  fi
}
report() {
  printf '\n%s\n' "podman $(command podman --version | awk '{print $3}'), $(nproc) cores"
  printf '%s\n' "${table[@]}"
  exit $failed
}

# --- images to build on

# shellcheck disable=SC2016  # for apt-get
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 /debian/) || skip "apt has no mirror of Debian"
make_debian() {
  podman image exists localhost/debian:12 && return
  rm -rf "$cache/bookworm"
  debootstrap --variant=minbase bookworm "$cache/bookworm" "$mirror" &&
    tar -C "$cache/bookworm" --one-file-system -c . | podman import - localhost/debian:12 &&
    rm -rf "$cache/bookworm"
}
# What podman asks for otherwise is more than containers may have here.
limits=(--ulimit nofile=20000:20000 --ulimit nproc=4096:4096)
build() { podman build --isolation=chroot --pull=never "${limits[@]}" "$@"; }
# A user's training image: Python with pip.
make_base() {
  podman image exists localhost/team/train:1 ||
    printf '%s\n' 'FROM localhost/debian:12' \
      'RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends python3 python3-pip && apt-get clean' |
      build -t localhost/team/train:1 -f - "$run"
}
step "Debian 12 as an image" make_debian || report
# What podman cannot do here it can do for no image.
said=$(podman run --rm --network=none "${limits[@]}" localhost/debian:12 true 2>&1) || skip "podman cannot run a container: $(tail -n 1 <<<"$said")"
step "an image with Python" make_base || report

# --- both stages

# Of a copy: a source that is edited meanwhile would be compiled again for the second stage.
mkdir "$run/source"
git ls-files -z --cached --others --exclude-standard | tar -c --null --files-from=- --ignore-failed-read 2>/dev/null | tar -C "$run/source" -x
stage() { build -f "$run/source/deploy/Containerfile" --build-arg BASE=localhost/team/train:1 "$@" "$run/source"; }
step "stage 1 compiles" stage --target build -t localhost/taskd-build || report
step "stage 2 installs" stage -t localhost/team/train-taskd:1 || report

# --- what comes of it

# The rank's work, without PyTorch: both meet in the store, and what a rank may write is asked.
cat >"$run/train.py" <<'END'
import os, sys, time
import taskd.mstx
what = sys.argv[1]
rank = int(os.environ["RANK"])
# In one write: the other rank writes to the same pipe.
os.write(1, f"rank {rank} of {os.environ['WORLD_SIZE']} as user {os.getuid()}, marks by {taskd.mstx.__name__}\n".encode())
if what == "hungry" and rank == 1:
    kept = []
    while True:
        kept.append(bytearray(b"x" * (1 << 20)))
if what != "short":
    open(f"/tmp/ready.{rank}", "w").close()
    time.sleep(600)
END
image=localhost/team/train-taskd:1
container=(run --rm --network=none "${limits[@]}" --volume "$run/train.py:/workspace/train.py:ro" --workdir /workspace --pids-limit 200)
confined=(--user 1000:1000 --read-only --read-only-tmpfs=false --cap-drop=all --security-opt=no-new-privileges --tmpfs /tmp:mode=1777 --shm-size=64m)
train=(taskd run --standalone --nproc-per-node=2 train.py)

trains() {  # USER OPTION...
  local user=$1 said
  shift
  said=$(podman "${container[@]}" "$@" "$image" "${train[@]}" short 2>&1)
  echo "$said"
  for rank in 0 1; do
    grep -q "^rank $rank of 2 as user $user, marks by taskd.mstx$" <<<"$said" || return 1
  done
}
stops() {
  local name=taskd-$$ code=0
  podman "${container[@]}" "${confined[@]}" --name "$name" "$image" "${train[@]}" long &
  local job=$!
  for _ in $(seq 600); do
    if podman exec "$name" sh -c 'test -e /tmp/ready.0 -a -e /tmp/ready.1' 2>/dev/null; then break; fi
    sleep 0.1
  done
  podman stop --time 60 "$name"
  wait "$job" || code=$?
  echo "exit code $code"
  [ "$code" -eq 143 ]
}
runs_out_of_memory() {
  local said code=0
  : >"$run/termination-log"
  chmod 666 "$run/termination-log"
  cd "$run"  # conmon leaves a file "oom" where it was started
  said=$(podman "${container[@]}" "${confined[@]}" --memory 300m --memory-swap 300m --volume "$run/termination-log:/dev/termination-log" "$image" \
    "${train[@]}" hungry 2>&1) || code=$?
  echo "$said"
  echo "exit code $code; the termination log:"
  cat "$run/termination-log"
  [ "$code" -eq 137 ] && grep -q 'killed by the kernel: out of memory (limit 300 MiB)' <<<"$said" &&
    head -n 1 "$run/termination-log" | grep -q '^First failure: rank 1 .*out of memory (limit 300 MiB)$'
}
step "trains as root" trains 0 || true
step "trains as a user, confined" trains 1000 "${confined[@]}" || true
step "trains as a user without a name" trains 1000660000 "${confined[@]}" --user 1000660000:0 || true
step "ends when it is stopped" stops || true
step "a rank is killed for memory" runs_out_of_memory || true
report
