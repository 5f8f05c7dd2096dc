"""Whether a user id, as the kernel shows it, is this process's own user or root: worker_sdk/include/taskd/own_user.h, whose
rule this is."""
import os


def is_own_user(uid):
    return uid == os.geteuid() and not is_unmapped(uid)


def is_root(uid):
    return uid == 0 and not is_unmapped(uid)


def is_own_user_or_root(uid):
    return is_own_user(uid) or is_root(uid)


def is_unmapped(uid):
    """A user namespace shows all whom it does not map as one id."""
    try:
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
            overflow = int(file.read())
    except (OSError, ValueError):
        overflow = 65534
    if uid != overflow:
        return False
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            mapped = sum(int(line.split()[2]) for line in file)
    except FileNotFoundError:  # a kernel without user namespaces; without /proc nobody knows
        return not os.path.exists("/proc/self/status")
    except (OSError, ValueError):
        return True
    return mapped < 2**32 - 1
