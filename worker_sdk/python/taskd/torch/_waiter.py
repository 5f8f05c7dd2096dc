"""A thread that waits for the work of host-side communication, for callers that must not block.

A Python callback on the future of a gloo Work would do it without a thread. But gloo's own thread then has to release Python
objects, for which it needs the GIL, and torch 1.13 destroys a process group, which joins that thread, while it holds the
GIL: the program hangs at its end, now and then. So no Python object of ours may get into a gloo thread.

The thread has ended before the interpreter does. CPython ends one that comes out of C++ after that by unwinding it, and C++
calls std::terminate: the program would abort at its end, now and then.
"""
import atexit
import os
import queue
import threading

from taskd.python.utils.log import run_log

END_WAIT_S = 5  # for work that may never be done; the program ends all the same

_lock = threading.Lock()
_queue = None
_thread = None


def when_done(work, done, failed):
    """done() once work.wait() has returned, failed(error) if it raised; in the order of the calls."""
    global _queue, _thread
    with _lock:
        if _queue is None:
            _queue = queue.SimpleQueue()
            _thread = threading.Thread(target=_run, args=(_queue,), name="taskd-waiter", daemon=True)
            _thread.start()
            atexit.register(_end)
        _queue.put((work, done, failed))


def _end():
    global _queue
    with _lock:
        items, _queue = _queue, None  # what comes after this has a thread of its own
    if items is not None:
        items.put(None)
        _thread.join(END_WAIT_S)


def _run(items):
    for work, done, failed in iter(items.get, None):
        try:
            try:
                work.wait()
            except Exception as error:
                failed(error)
            else:
                done()
        except Exception as error:
            run_log.error("taskd.torch: %s", error)
        work = done = failed = None  # nothing is kept alive until the next one comes


def _forget_in_forked_child():
    global _queue, _thread, _lock
    _queue, _thread, _lock = None, None, threading.Lock()


os.register_at_fork(after_in_child=_forget_in_forked_child)
