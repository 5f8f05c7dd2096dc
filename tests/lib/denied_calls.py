"""Runs a program under a seccomp filter, as a container runtime's or a job's own: denied_calls.py errno|kill CALL[,CALL...] COMMAND...

The filter answers EPERM to the calls, or kills the process (SIGSYS). It is the program's and of all that it starts.
"""
import ctypes
import errno
import os
import platform
import struct
import sys

# By machine: x86_64, aarch64.
NUMBERS = {"fallocate": (285, 47), "memfd_create": (319, 279), "renameat2": (316, 276), "pidfd_open": (434, 434), "close_range": (436, 436),
           "openat2": (437, 437), "ptrace": (101, 117), "process_vm_readv": (310, 270), "perf_event_open": (298, 241), "setns": (308, 268)}
MACHINES = ("x86_64", "aarch64")
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of struct seccomp_data the number is the first word
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000


def install(numbers, action):
    """A filter for this process, from now on."""
    # (operation, steps to jump if equal, and if not, operand)
    program = [(LOAD_NUMBER, 0, 0, 0), *((JUMP_IF_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)),
               (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, action)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(filters)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)):
        if libc.prctl(*(ctypes.c_ulong(one) if isinstance(one, int) else one for one in arguments)) != 0:
            sys.exit(f"denied_calls.py: prctl: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    install([NUMBERS[name][MACHINES.index(platform.machine())] for name in sys.argv[2].split(",")],
            {"errno": ERRNO | errno.EPERM, "kill": KILL_PROCESS}[sys.argv[1]])
    os.execvp(sys.argv[3], sys.argv[3:])
