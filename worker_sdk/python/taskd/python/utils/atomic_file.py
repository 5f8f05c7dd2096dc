"""Replaces files as a whole."""
import os
import threading


def write_file(path, text):
    """Replaces the file: a reader finds the old text or the new one, even after the machine has lost its power.

    On any error the file is as it was, and nothing stays beside it.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, ".%s.%d.%d" % (name, os.getpid(), threading.get_ident()))
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
    _sync_folder(folder or ".")


def _sync_folder(folder):
    """So that the name lasts, too. Not every file system can do this with a folder."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(opened)
    except OSError:
        pass
    finally:
        os.close(opened)
