"""A real browser: Debian's chromium-headless-shell, driven by playwright-core."""
import json
import os
import shutil
import subprocess

import psutil

from deadlines import PATIENCE_S, wait_child, wait_until

FOLDER = os.path.dirname(os.path.abspath(__file__))
CHROMIUM = shutil.which("chromium-headless-shell")
# Beside the builds of all presets, for tests alone.
INSTALL = "npm install --prefix build/browser --no-package-lock playwright-core@1.65.1"
PLAYWRIGHT = os.path.join(os.path.dirname(os.environ["TASKD_BUILD_DIR"]), "browser", "node_modules", "playwright-core")


def missing():
    """What is not there to run these tests; empty: everything is."""
    if not shutil.which("node"):
        return "no node: apt-get install nodejs"
    if not CHROMIUM:
        return "no chromium-headless-shell: apt-get install chromium-headless-shell"
    if not os.path.isdir(PLAYWRIGHT):
        return f"no playwright-core: {INSTALL}"
    return ""


class Browser:
    def __init__(self, *arguments):
        self.process = subprocess.Popen(["node", os.path.join(FOLDER, "driver.mjs"), PLAYWRIGHT, CHROMIUM, *arguments],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def order(self, action, **arguments):
        self.process.stdin.write(json.dumps({"do": action, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the browser has ended"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def renew(self):
        """Forgets all pages, cookies, requests and errors."""
        self.order("renew")

    def open(self, url):
        return self.order("open", url=url)

    def evaluate(self, script):
        return self.order("evaluate", script=script)

    def click(self, selector):
        self.order("click", selector=selector)

    def press(self, key):
        self.order("press", key=key)

    def text(self, selector):
        """None: there is no such element."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")

    def wait_text(self, selector, *parts, timeout_s=PATIENCE_S):
        seen = []

        def shows():
            seen[:] = [self.text(selector)]
            return seen[0] is not None and all(part in seen[0] for part in parts) and (seen[0] or "-")
        try:
            return wait_until(shows, f"{selector} shows {parts}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {seen[0]!r}") from None

    def signal_pages(self, signal):
        """To the processes that the pages run in, as a machine that sleeps would stop them."""
        pages = [process for process in psutil.Process(self.process.pid).children(recursive=True) if "--type=renderer" in process.cmdline()]
        assert pages
        for process in pages:
            process.send_signal(signal)

    def close(self):
        self.process.stdin.close()
        wait_child(self.process)
