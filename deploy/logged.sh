#!/usr/bin/env bash
# deploy/logged.sh LOG COMMAND...: runs COMMAND with its output in LOG. On a terminal a line shows how long it has run, and how
# far: Ninja's "[12/345]" or the newest line. If the command fails, the last lines of LOG go to stderr. Exit code: the command's.
set -u
log=$1
shift
set -m  # a process group of its own, that Ctrl-C ends all of it
"$@" >"$log" 2>&1 </dev/null &
command=$!
set +m
trap 'kill -- "-$command" 2>/dev/null; exit 130' INT
trap 'kill -- "-$command" 2>/dev/null; exit 143' TERM
if [ -t 1 ]; then
  columns=$(tput cols 2>/dev/null || echo 80)
  while kill -0 "$command" 2>/dev/null; do
    newest=$(tail -n 1 "$log" | tr -cd '[:print:]')
    printf '\r  %d:%02d %s\033[K' $((SECONDS / 60)) $((SECONDS % 60)) "${newest:0:$((columns > 20 ? columns - 10 : 10))}"
    sleep 0.5
  done
  printf '\r\033[K'
fi
wait "$command"
code=$?
[ $code -eq 0 ] || tail -n 40 "$log" >&2
exit $code
