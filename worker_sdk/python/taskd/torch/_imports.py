"""Calls back when a module has been imported, without importing it."""
import sys

from taskd.torch._patches import quietly

_watched = {}  # module name: callback


class _Finder:
    """First in sys.meta_path: hands every search on, and for a watched module calls back after it has run."""

    def find_spec(self, fullname, path=None, target=None):
        callback = _watched.get(fullname)
        if callback is None:
            return None
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(fullname, path, target) if find_spec is not None and finder is not self else None
            if spec is not None:
                _call_after(spec.loader, callback, fullname)
                return spec
        return None


def _call_after(loader, callback, fullname):
    original = getattr(loader, "exec_module", None)
    if original is None:
        return

    def exec_module(module):
        del loader.exec_module  # the loader is again as it was
        original(module)
        # Only a module that has run has been imported; after a failure the next attempt is watched as well.
        if _watched.pop(fullname, None) is not None:
            quietly(callback, module)

    loader.exec_module = exec_module


_finder = _Finder()


def when_imported(name, callback):
    """callback(module): now if it is there, else right after its import."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        quietly(callback, module)
        return
    _watched[name] = callback
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget():
    _watched.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
