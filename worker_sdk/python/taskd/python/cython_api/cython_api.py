"""libtaskd.so by ctypes: the one inside this package, and no other."""
import ctypes
import os
import threading

LIBRARY_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libs", "libtaskd.so")

_lock = threading.Lock()
_library = None


def load():
    """The library, loaded once. Raises OSError: it is missing, damaged or a symbolic link.

    Where the same file is preloaded (LD_PRELOAD) this is that copy. A link is refused: who may change where it points
    could put code into every training process.
    """
    global _library
    with _lock:
        if _library is None:
            if os.path.islink(LIBRARY_PATH):
                raise OSError(f"{LIBRARY_PATH} is a symbolic link; it must be the library itself")
            library = ctypes.CDLL(LIBRARY_PATH)
            library.taskd_worker_init.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int]
            library.taskd_enabled_kinds.argtypes = []
            library.taskd_enabled_kinds.restype = ctypes.c_uint32
            for name, result, arguments in (
                ("mstxMarkA", None, [ctypes.c_char_p, ctypes.c_void_p]),
                ("mstxRangeStartA", ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_void_p]),
                ("mstxRangeEnd", None, [ctypes.c_uint64]),
                ("mstxDomainCreateA", ctypes.c_void_p, [ctypes.c_char_p]),
                ("mstxDomainMarkA", None, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]),
                ("mstxDomainRangeStartA", ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]),
            ):
                function = getattr(library, name)
                function.restype = result
                function.argtypes = arguments
            _library = library
        return _library


def __getattr__(name):
    if name == "lib":
        return load()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
