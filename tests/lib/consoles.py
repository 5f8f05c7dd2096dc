"""A console that nobody reads: a terminal under Ctrl-S, a log collector that hangs."""
import os
import threading


class StalledConsole:
    """A FIFO that is full from the beginning. `to_stderr` or `to_both` before a command sends its output there."""

    def __init__(self, folder, name="console"):
        path = os.path.join(folder, name)
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # nobody else's open file gets the flag
        self._filled = 0
        while True:
            try:
                self._filled += os.write(self._fd, b"f" * 4096)
            except BlockingIOError:
                break
        self.to_stderr = ("sh", "-c", 'exec "$@" 2>"$0"', path)
        self.to_both = ("sh", "-c", 'exec "$@" >"$0" 2>&1', path)
        self._text = b""
        self._reader = None

    def begin_to_read(self):
        os.set_blocking(self._fd, True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while True:
            self._text += os.read(self._fd, 1 << 16)

    def text(self):
        """What was read of what others have written."""
        return self._text[self._filled:].decode(errors="replace")
