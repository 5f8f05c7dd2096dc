"""Marks, usable where torch_npu is absent: the calls of torch.npu.mstx, recorded by TaskD.

    from taskd import mstx
    step = mstx.range_start("step 7")        # or with a stream: mstx.range_start("step 7", torch.npu.current_stream())
    ...
    mstx.range_end(step)
    mstx.mark("a moment", domain="communication")

message: str or bytes; names up to 254 bytes are kept whole. stream: None, a stream's address as an int, or an object with an
int npu_stream or cuda_stream. domain: a name, None for the default one. range_start returns the range's id, 0 where
nothing is recorded; range_end takes it from any thread, and 0 does nothing. enabled_kinds() gives the bits of the kinds
that are recorded now (KIND_*): who must build a name first asks there whether it is worth it. Nothing here raises.
"""
from taskd.python.cython_api import cython_api
from taskd.python.utils.log import run_log

__all__ = ["mark", "range_start", "range_end", "enabled_kinds"]

KIND_STEP = 0x01
KIND_SAVE_CHECKPOINT = 0x02
KIND_FORWARD = 0x04
KIND_DATALOADER = 0x08
KIND_COMMUNICATION = 0x10
KIND_OTHER = 0x20


def _by_extension(library):
    from taskd import _mstx

    _mstx.bind(library._handle)
    return _mstx.mark, _mstx.range_start, _mstx.range_end, _mstx.enabled_kinds


def _by_ctypes(library):
    """For a Python that cannot load the extension; several times as slow, see tests/bench/python_mark_cost.py."""
    domains = {}

    def text(message):
        return message if isinstance(message, bytes) else message.encode("utf-8", "surrogatepass")

    def address(stream):
        if stream is None or isinstance(stream, int):
            return stream
        for attribute, zero in (("npu_stream", None), ("cuda_stream", 1)):
            value = getattr(stream, attribute, None)
            if isinstance(value, int):
                return value or zero
        return None

    def handle(domain):
        if domain not in domains:
            domains[domain] = library.mstxDomainCreateA(text(domain))
        return domains[domain]

    def mark(message, stream=None, domain=None):
        try:
            if domain is None:
                library.mstxMarkA(text(message), address(stream))
            else:
                library.mstxDomainMarkA(handle(domain), text(message), address(stream))
        except Exception:  # a message that is no text
            pass

    def range_start(message, stream=None, domain=None):
        try:
            if domain is None:
                return library.mstxRangeStartA(text(message), address(stream))
            return library.mstxDomainRangeStartA(handle(domain), text(message), address(stream))
        except Exception:
            return 0

    def range_end(range_id):
        if isinstance(range_id, int) and 0 < range_id < 2**64:
            library.mstxRangeEnd(range_id)

    return mark, range_start, range_end, library.taskd_enabled_kinds


def _by_nothing():
    def mark(message=None, stream=None, domain=None):
        pass

    def range_start(message=None, stream=None, domain=None):
        return 0

    def range_end(range_id=0):
        pass

    def enabled_kinds():
        return 0

    return mark, range_start, range_end, enabled_kinds


def _choose():
    try:
        library = cython_api.load()
    except Exception as error:
        run_log.error("mstx: nothing will be recorded: %s", error)
        return "nothing", _by_nothing()
    try:
        return "extension", _by_extension(library)
    except Exception as error:
        run_log.info("mstx: marks go through ctypes: %s", error)
    try:
        return "ctypes", _by_ctypes(library)
    except Exception as error:
        run_log.error("mstx: nothing will be recorded: %s", error)
        return "nothing", _by_nothing()


backend, (mark, range_start, range_end, enabled_kinds) = _choose()
