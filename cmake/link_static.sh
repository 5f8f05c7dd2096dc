#!/bin/sh
# link_static.sh COMPILER ARGUMENT...: links a static-pie. Every shared library of the line becomes the archive beside it:
# Debian's CMake packages name shared libraries only, and other programs of the same build keep those.
compiler=$1
shift
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  count=$((count - 1))
  case $argument in
    -pie) set -- "$@" -static-pie ;;
    *.so | *.so.[0-9]*)
      archive=${argument%.so*}.a
      if [ ! -f "$archive" ]; then
        echo "a static taskd needs $archive, which is not there (configure with -DTASKD_STATIC=OFF for a dynamic one)" >&2
        exit 1
      fi
      set -- "$@" "$archive"
      ;;
    *) set -- "$@" "$argument" ;;
  esac
done
# The archives need each other. A warning is glibc's, of a function that needs its shared libraries.
exec "$compiler" -Wl,--fatal-warnings -Wl,--start-group "$@" -Wl,--end-group
