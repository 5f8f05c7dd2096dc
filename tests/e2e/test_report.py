"""`taskd report`: one HTML file for a ticket, of mark files and of a manager; and the errors it may have."""
import json
import os
import stat
import subprocess
from html.parser import HTMLParser

import deadlines
import harness
import pytest
from harness import JOB, TASKD, wait_until
from synthetic_job import Job



class Page(HTMLParser):
    """What a browser would load, and text; an element that is not closed is an error."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.addresses, self.words = [], set(), [], []
        self.feed(html)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("href", "src", "srcset", "data", "action", "xlink:href")]
        assert not any(name.startswith("on") for name, _ in attrs), attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)


def page_of(html):
    page = Page(html)
    assert page.tags.isdisjoint({"script", "link", "iframe", "object", "embed", "form"}), page.tags
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses), page.addresses
    return page


def slow_rank(marks, steps=60):
    job = Job(ranks=4, steps=steps)
    job.compute[2] = lambda step: 1.5 if step >= 30 else 1
    job.data_parallel()
    job.write(marks)


@pytest.fixture
def marks(tmp_path):
    return tmp_path / "marks"


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "report.html"


def one_line(done, code, *words):
    assert done.returncode == code, (done.returncode, done.stderr)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1, (done.stdout, done.stderr)
    for word in words:
        assert word in done.stderr, done.stderr


def test_of_mark_files(stage, marks, out):
    slow_rank(marks)
    done = stage.run("report", "--from", str(marks), "--job", "default/llm", "-o", str(out))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.startswith(f"{out}: slow: rank 2 (node 0)") and done.stdout.count("\n") == 1
    assert os.listdir(out.parent) == [out.name]
    html = out.read_text()
    assert len(html) < 300_000
    page = page_of(html)
    for words in ("default/llm", "slow: rank 2 (node 0)", "since step 30", "Where a step's time goes", "rank 3", str(marks)):
        assert words in page.text, words
    assert page.addresses, "no picture"
    # What it says is what the diagnosis says, and the ledger.
    text = stage.run("diagnose", "--from", str(marks)).stdout
    assert text.splitlines()[0].removeprefix("slow: ") in page.text
    goodput = json.loads(stage.run("goodput", "--from", str(marks), "--json").stdout)
    assert goodput["seconds"]["straggler"] > 0 and goodput["text"] in page.text


def test_to_stdout_and_again(stage, marks, out):
    slow_rank(marks)
    first = stage.run("report", "--from", str(marks), "-o", "-")
    assert first.returncode == 0 and first.stdout.startswith("<!doctype html>") and first.stderr == ""
    out.write_text("an old one")
    out.chmod(0o640)
    assert stage.run("report", "--from", str(marks), "-o", str(out)).returncode == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o640

    def undated(html):
        return [line for line in html.splitlines() if "<footer>" not in line]
    assert undated(out.read_text()) == undated(first.stdout)


def test_names_are_text(stage, tmp_path, out):
    marks = tmp_path / "<script>alert(1)<" / "&\"'"
    slow_rank(marks)
    name = "default/<img src=x onerror=alert(1)>\u202e"
    done = stage.run("report", "--from", str(marks), "--job", name, "-o", str(out))
    assert done.returncode == 0, done.stderr
    page = page_of(out.read_text())
    assert "<img src=x onerror=alert(1)>" in page.text and "<script>alert(1)<" in page.text
    assert "\u202e" not in out.read_text()


def test_wrong_usage_leaves_what_was_there(stage, marks, out, tmp_path):
    out.write_text("an old one")
    one_line(stage.run("report", "--from", str(marks), "-o", str(out)), 2, "--from", str(marks))
    one_line(stage.run("report", "--from", str(tmp_path), "--manager", "127.0.0.1:1"), 2, "--from", "--manager")
    one_line(stage.run("report", "--manager", "nonsense", "-o", str(out)), 2, "nonsense")
    one_line(stage.run("report", "--manager", f"127.0.0.1:{harness.free_port()}", "-o", str(out)), 1, "cannot be reached")
    assert out.read_text() == "an old one" and os.listdir(out.parent) == [out.name]
    slow_rank(marks)
    one_line(stage.run("report", "--from", str(marks), "-o", str(tmp_path)), 2, "-o", str(tmp_path))
    one_line(stage.run("report", "--from", str(marks), "-o", str(tmp_path / "no" / "x.html")), 2, "-o", "x.html")


def test_of_a_manager(stage, manager, out):
    simulate = [TASKD, "simulate", "--manager", manager.address, "--ranks", "16", "--steps", "120", "--fault", "compute:7:1.5@50"]
    deadlines.run(simulate, env=harness.clean_environment(), check=True, stdout=subprocess.DEVNULL, timeout_s=100)

    def judged():
        done = stage.run("report", "--manager", manager.address, "-o", str(out))
        assert done.returncode == 0, done.stderr
        return done.stdout if "slow: rank 7" in done.stdout else None
    wait_until(judged, "the report names rank 7")
    html = out.read_text()
    assert len(html) < 300_000
    page = page_of(html)
    for words in (JOB, "slow: rank 7", "Events", "verdict_opened", "nodes connected", "self time known"):
        assert words in page.text, words
    one_line(stage.run("report", "--manager", manager.address, "--job", "default/another", "-o", str(out)), 1, "default/another")
    assert out.read_text() == html
