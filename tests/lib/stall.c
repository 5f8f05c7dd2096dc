// Preloaded into a proxy: storage that hangs. While the file named by STALL_SWITCH exists, what touches files below the
// path that it holds waits, as system calls on a lost disk or a server that is away do.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int Stalled(int fd, const char* name) {
  const int error = errno;
  static __thread char wanted[PATH_MAX];
  const char* control = getenv("STALL_SWITCH");
  FILE* file = control != NULL ? fopen(control, "re") : NULL;
  if (file == NULL) {
    errno = error;
    return 0;
  }
  const size_t length = fread(wanted, 1, sizeof(wanted) - 1, file);
  fclose(file);
  wanted[length] = '\0';
  char link[64];
  char path[2 * PATH_MAX];
  ssize_t have = 0;
  if (fd >= 0 && (name == NULL || name[0] != '/')) {
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    have = readlink(link, path, PATH_MAX - 1);
    if (have < 0) have = 0;
  }
  path[have] = '\0';
  if (name != NULL) snprintf(path + have, sizeof(path) - have, "/%s", name[0] == '/' ? name + 1 : name);
  errno = error;
  return length > 0 && strncmp(path, wanted, length) == 0;
}

static void Wait(int fd, const char* name) {
  const struct timespec nap = {0, 5000000};
  while (Stalled(fd, name)) nanosleep(&nap, NULL);
}

#define REAL(type, symbol, ...)            \
  static type (*real)(__VA_ARGS__) = NULL; \
  if (real == NULL) *(void**)(&real) = dlsym(RTLD_NEXT, symbol)

ssize_t write(int fd, const void* data, size_t bytes) {
  REAL(ssize_t, "write", int, const void*, size_t);
  if (fd > 2) Wait(fd, NULL);
  return real(fd, data, bytes);
}

int openat(int folder, const char* name, int flags, ...) {
  REAL(int, "openat", int, const char*, int, ...);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  Wait(folder, name);
  return real(folder, name, flags, mode);
}

int fstatat(int folder, const char* name, struct stat* info, int flags) {
  REAL(int, "fstatat", int, const char*, struct stat*, int);
  Wait(folder, name);
  return real(folder, name, info, flags);
}

int unlinkat(int folder, const char* name, int flags) {
  REAL(int, "unlinkat", int, const char*, int);
  Wait(folder, name);
  return real(folder, name, flags);
}
