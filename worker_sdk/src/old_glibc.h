// What is loaded into training runs in its image, whose glibc may be as old as 2.17 (manylinux2014). glibc 2.32, 2.34
// and 2.38 gave functions that were always there a second, newer version, and the linker takes the newest: here the old
// one is named. Included by the compiler before everything else (-include), so that no file can forget it.
//
// Up to glibc 2.33 these lie in libdl.so.2 and libpthread.so.0, which the library therefore needs by name
// (worker_sdk/CMakeLists.txt); since then in libc.so.6, and those two are empty. A version is looked for in whatever
// library has the function, so one reference fits both. What has no old version is in old_glibc.c, and
// tests/lib/symbol_floor.py finds what is missing here.
#pragma once

#if defined(__x86_64__)
#define TASKD_OLD_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define TASKD_OLD_GLIBC "GLIBC_2.17"
#endif

#ifdef TASKD_OLD_GLIBC
#define TASKD_OLD_AS(name, old_name) __asm__(".symver " #name "," #old_name "@" TASKD_OLD_GLIBC)
#define TASKD_OLD(name) TASKD_OLD_AS(name, name)
TASKD_OLD(dladdr);
TASKD_OLD(dlclose);
TASKD_OLD(dlerror);
TASKD_OLD(dlopen);
TASKD_OLD(dlsym);
TASKD_OLD(pthread_attr_setstacksize);
TASKD_OLD(pthread_create);
TASKD_OLD(pthread_detach);
TASKD_OLD(pthread_key_create);
TASKD_OLD(pthread_setspecific);
TASKD_OLD(pthread_sigmask);
// C23 takes "0b1" for a number, which nobody asks for here.
TASKD_OLD_AS(__isoc23_strtol, strtol);
#undef TASKD_OLD
#undef TASKD_OLD_AS
#endif
