"""Opens, reads and replaces files at paths that other users can touch. tests/check_files.py refuses open() elsewhere here.

Nothing follows a link at a path's end, waits for a FIFO or uses a device. Everything raises OSError, and takes as long as the
storage does. common/files.h is the same for TaskD's programs, and common/runtime_dir.h has the rule of folders.
"""
import binascii
import errno
import os
import stat

from taskd import _own_user

_NEVER_WAIT = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OTHERS_MAY_WRITE = 0o022
_MAX_NAME = 200  # characters of a name within its fresh name


def _refuse(path, why):
    raise PermissionError(errno.EPERM, why, path)


def open_own_folder(path):
    """The descriptor of a folder that only this user and root can write to, or put another one in place of.

    Leading folders of root's that others cannot write to are taken as they are, with links. From there on no link is followed,
    and each folder belongs to this user or root and is not writable by others, but for sticky ones such as /tmp on the way.
    """
    names = [name for name in os.path.join(os.getcwd(), path).split("/") if name not in ("", ".")]
    folder, systems, below_shared = None, True, False
    try:
        for i, name in enumerate(["/"] + names):
            is_last = i == len(names)
            flags = os.O_DIRECTORY | os.O_CLOEXEC | (os.O_RDONLY if is_last else os.O_PATH) | (0 if systems else os.O_NOFOLLOW)
            above, folder = folder, os.open(name, flags, dir_fd=folder)
            if above is not None:
                os.close(above)
            status = os.fstat(folder)
            roots = _own_user.is_root(status.st_uid) or (not below_shared and _own_user.is_unmapped(status.st_uid))
            shared = status.st_mode & _OTHERS_MAY_WRITE
            may_be_shared = not is_last and (status.st_mode & stat.S_ISVTX or (roots and systems))
            if not roots and not _own_user.is_own_user(status.st_uid) or shared and not may_be_shared:
                _refuse(path, f"{name!r} on the way belongs to user {status.st_uid}, mode {status.st_mode & 0o7777:04o}")
            systems, below_shared = systems and roots and not shared, below_shared or bool(shared)
        result, folder = folder, None
        return result
    finally:
        if folder is not None:
            os.close(folder)


def open_folder(path, dir_fd=None, follow_links=False):
    """A descriptor of the folder, whoever it belongs to."""
    flags = os.O_RDONLY | os.O_DIRECTORY | _NEVER_WAIT
    return os.open(path, flags & ~os.O_NOFOLLOW if follow_links else flags, dir_fd=dir_fd)


def open_regular(path, flags, mode=0o600, dir_fd=None, only_own=False):
    """The descriptor of a regular file. With O_CREAT in `flags` it is made where it is missing.

    only_own: it belongs to this user or root, and nobody else may write to it.
    """
    file = os.open(path, flags | _NEVER_WAIT, mode, dir_fd=dir_fd)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            _refuse(path, "is not a regular file")
        if only_own and (status.st_mode & _OTHERS_MAY_WRITE or not _own_user.is_own_user_or_root(status.st_uid)):
            _refuse(path, f"belongs to user {status.st_uid}, mode {status.st_mode & 0o7777:04o}")
    except BaseException:
        os.close(file)
        raise
    return file


def open_log(path, flags, mode):
    """As open_regular(), for a file in a folder that others may write to as well: another user may have made it, to read it.

    What owner a file has there the file system says: some show one for all files, or another one than the user who made it.
    """
    head, name = os.path.split(path)
    folder = open_folder(head or ".")
    try:
        file = open_regular(name, flags, mode, dir_fd=folder)
        try:
            of_folder, owner = os.fstat(folder), os.fstat(file).st_uid
            only_own = _own_user.is_own_user_or_root(of_folder.st_uid) and not of_folder.st_mode & _OTHERS_MAY_WRITE
            if not (only_own or _own_user.is_own_user_or_root(owner)) and (
                    _own_user.is_unmapped(owner) or owner != _owner_of_fresh(folder, name)):
                _refuse(path, f"belongs to user {owner}, not to this one, {os.geteuid()}")
        except BaseException:
            os.close(file)
            raise
    finally:
        os.close(folder)
    return file


def _owner_of_fresh(folder, name):
    fresh = _fresh_name(name)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NEVER_WAIT, 0o600, dir_fd=folder)
    try:
        return os.fstat(file).st_uid
    finally:
        os.close(file)
        os.unlink(fresh, dir_fd=folder)


def _fresh_name(name):
    return f".{name[:_MAX_NAME]}.{os.getpid()}-{binascii.hexlify(os.urandom(8)).decode()}.new"


def read_own(name, max_bytes, dir_fd=None):
    """The text of a file that only this user or root can write to."""
    with os.fdopen(open_regular(name, os.O_RDONLY, dir_fd=dir_fd, only_own=True), "rb", buffering=0) as opened:
        data = b""
        while len(data) <= max_bytes:
            piece = opened.read(max_bytes + 1 - len(data))
            if not piece:
                return data.decode("utf-8", "replace")
            data += piece
    raise OSError(errno.EFBIG, f"is larger than {max_bytes} bytes", name)


def replace_file(folder, name, text):
    """Replaces the file `name` of the folder that the descriptor `folder` stands for.

    A reader finds the old text or the new one, even after the machine has lost its power. On any error the file is as it was,
    and nothing stays beside it.
    """
    data = text.encode("utf-8")
    fresh = _fresh_name(name)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NEVER_WAIT, 0o666, dir_fd=folder)
    try:
        try:
            while data:
                data = data[os.write(file, data):]
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(fresh, dir_fd=folder)
        raise
    try:  # so that the name lasts, too; not every file system can do this with a folder
        os.fsync(folder)
    except OSError:
        pass
