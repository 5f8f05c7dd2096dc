# Toolchain of the preset release-aarch64: Debian's cross compiler, and the arm64 libraries that deploy/sysroot.sh fetches.
# TASKD_SYSROOT names another folder of them.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)

# CMake reads this file again for each of its own trial builds.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TASKD_SYSROOT)
if(NOT TASKD_SYSROOT OR NOT EXISTS ${TASKD_SYSROOT})
  execute_process(COMMAND ${CMAKE_CURRENT_LIST_DIR}/../deploy/sysroot.sh arm64
    OUTPUT_VARIABLE sysroot OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(TASKD_SYSROOT ${sysroot} CACHE PATH "The arm64 libraries and headers to build with" FORCE)
endif()
set(CMAKE_SYSROOT ${TASKD_SYSROOT})
list(APPEND CMAKE_CROSSCOMPILING_EMULATOR -L ${TASKD_SYSROOT})
# Or the start files and libc of the compiler's own package come first, which gets no security updates.
foreach(type IN ITEMS EXE SHARED MODULE)
  set(CMAKE_${type}_LINKER_FLAGS_INIT -B${TASKD_SYSROOT}/usr/lib/aarch64-linux-gnu/)
endforeach()

# Headers name themselves in messages: not by a path of this machine.
foreach(language IN ITEMS C CXX)
  set(CMAKE_${language}_FLAGS_INIT -ffile-prefix-map=${TASKD_SYSROOT}=)
endforeach()

# Programs that the build runs are this machine's.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${TASKD_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${TASKD_SYSROOT}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${TASKD_SYSROOT})
# FindPython would ask this machine's Python, and refuse its headers.
file(GLOB python_include ${TASKD_SYSROOT}/usr/include/python3.[0-9]*)
set(Python3_INCLUDE_DIR ${python_include} CACHE PATH "Headers for the extension")
