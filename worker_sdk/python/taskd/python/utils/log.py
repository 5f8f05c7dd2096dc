"""The package's logger, and the promise of its public functions."""
import functools
import logging

from taskd.python.utils import _log_variables

run_log = logging.getLogger("taskd")
_log_variables.apply_to(run_log)


def never_raises(function):
    """Training goes on whatever happens here: an error is one line in the log, and the answer is False."""

    @functools.wraps(function)
    def guarded(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception as error:
            run_log.error("%s: %s", function.__name__, " ".join(str(error).split()) or type(error).__name__)
            return False

    return guarded
