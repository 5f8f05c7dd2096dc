"""A thread that waits for the work of host-side communication, for callers that must not block.

A Python callback on the future of a gloo Work would do it without a thread. But gloo's own thread then has to release Python
objects, for which it needs the GIL, and torch 1.13 destroys a process group, which joins that thread, while it holds the
GIL: the program hangs at its end, now and then. So no Python object of ours may get into a gloo thread.
"""
import os
import queue
import threading

from taskd.python.utils.log import run_log

_lock = threading.Lock()
_queue = None


def when_done(work, done, failed):
    """done() once work.wait() has returned, failed(error) if it raised; in the order of the calls."""
    global _queue
    with _lock:
        if _queue is None:
            _queue = queue.SimpleQueue()
            threading.Thread(target=_run, args=(_queue,), name="taskd-waiter", daemon=True).start()
    _queue.put((work, done, failed))


def _run(items):
    while True:
        work, done, failed = items.get()
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
    global _queue, _lock
    _queue, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_in_forked_child)
