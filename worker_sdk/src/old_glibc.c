// What glibc has only since 2.27 and 2.33, as the system calls that they are (old_glibc.h). Hidden: they stand for libc's
// functions in this library and nowhere else.
#if defined(__x86_64__) || defined(__aarch64__)  // where the kernel's struct stat is libc's
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1  // memfd_create
#endif
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#pragma GCC visibility push(hidden)

int fstat(int fd, struct stat* info) { return (int)syscall(SYS_fstat, fd, info); }

int fstatat(int folder, const char* path, struct stat* info, int flags) {
  return (int)syscall(SYS_newfstatat, folder, path, info, flags);
}

int lstat(const char* path, struct stat* info) { return fstatat(AT_FDCWD, path, info, AT_SYMLINK_NOFOLLOW); }

int memfd_create(const char* name, unsigned flags) { return (int)syscall(SYS_memfd_create, name, flags); }

#pragma GCC visibility pop
#endif
