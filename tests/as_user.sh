#!/usr/bin/env bash
# Runs a command as an ordinary user, for that is who trains: tests/as_user.sh COMMAND...
#
# Started by root, COMMAND is user TASKD_TEST_UID's, 64123 where that is unset: one without a name, a home or anything else of
# its own. 0 leaves it to root. Where that user could not enter the clone (below /root, say) it gets a mount namespace in which
# it can. Whoever is not root remains who he is. Who could not become another user, or not read the clone, goes on as
# root, and a line on stderr says why.
set -u
uid=${TASKD_TEST_UID:-64123}
if [ $EUID -ne 0 ] || [ "$uid" = 0 ]; then exec "$@"; fi

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
as_user=(setpriv --reuid="$uid" --regid="$uid" --clear-groups --inh-caps=-all)
# What is left of root's: the PATH without folders that are closed to the user (exec would say "Permission denied" where a
# program does not exist), a temporary folder that it can write.
# shellcheck disable=SC2016  # for the inner shell
as_user+=(env -u XDG_RUNTIME_DIR -u XDG_CACHE_HOME -u USER -u LOGNAME -u MAIL HOME=/nonexistent TASKD_TESTS_OF_ROOT=1 bash -c '
  path=
  IFS=:
  for folder in $PATH; do if [ -x "$folder" ]; then path=$path:$folder; fi; done
  unset IFS
  export PATH=${path#:}
  [ -w "${TMPDIR:-/tmp}" ] || unset TMPDIR
  exec "$@"' as_user)

as_root() {
  echo "as_user.sh: as root: $1" >&2
  shift
  exec "$@"
}
can_read() { "${as_user[@]}" test -r "$tree/tests/run.sh" -a -r "$tree/CMakeLists.txt" 2>/dev/null; }

"${as_user[@]}" true 2>/dev/null || as_root "setpriv cannot become user $uid here" "$@"
if can_read; then exec "${as_user[@]}" "$@"; fi

# The uppermost folder on the way to the clone that is closed to the user. What it sees in its place has the clone alone:
# nothing else in there was open to it. -c: a name that is covered already is not looked for again.
closed=
IFS=/
for name in ${tree#/}; do
  closed=$closed/$name
  "${as_user[@]}" test -x "$closed" || break
done
unset IFS
# shellcheck disable=SC2016  # for the inner shell
opened=(unshare --mount --propagation private bash -ec '
  tree=$1 closed=$2 back=$PWD
  shift 2
  cd "$tree"
  mount -t tmpfs -o mode=755 none "$closed"
  mkdir -p "$tree"
  for entry in .[!.]* *; do
    [ -e "$entry" ] || continue
    if [ -d "$entry" ]; then mkdir "$tree/$entry"; else : >"$tree/$entry"; fi
    mount -c --rbind "$entry" "$tree/$entry"
  done
  cd "$back" 2>/dev/null || cd /
  exec "$@"' as_user "$tree" "$closed")
"${opened[@]}" true 2>/dev/null || as_root "user $uid cannot enter $closed, and mounts are not allowed here" "$@"
as_user=("${opened[@]}" "${as_user[@]}")
can_read || as_root "user $uid cannot read the files in $tree (were they made under umask 077?)" "$@"
exec "${as_user[@]}" "$@"
