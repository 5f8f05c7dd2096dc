"""The page's panel of the ledger (docs/goodput.md): of a real job one of whose ranks was killed, and of texts that are anything."""
import json
import os

import pytest

import goodput_job
import harness
import stubs
from deadlines import HANG_S, wait_until
from launchers import Jobs
from test_page import shot, url

pytestmark = pytest.mark.timeout(300)
PATIENCE_S = 120
# What is not within its card.
OUTSIDE = """(() => {
  const card = document.querySelector("#goodput"), end = card.getBoundingClientRect().right;
  return Array.from(card.querySelectorAll("*")).filter(part => part.getBoundingClientRect().right > end)
    .map(part => part.outerHTML.slice(0, 200));
})()"""
# {category: its part of the bar}, and what the legend says of it.
SHARES = """(() => {
  const width = document.querySelector(".shares").clientWidth;
  return Object.fromEntries(Array.from(document.querySelectorAll(".shares > span"),
    part => [part.className.replace("share-", ""), part.clientWidth / width]));
})()"""
LEGEND = """Object.fromEntries(Array.from(document.querySelectorAll("#goodput .keys li"),
  key => [key.firstElementChild.nextSibling.data.trim(), key.querySelector("b").innerText]))"""
INCIDENTS = "Array.from(document.querySelectorAll('#incidents tbody tr'), row => Array.from(row.cells, cell => cell.innerText))"


def shot_panel(browser, name):
    if os.environ.get("TASKD_SCREENSHOTS"):
        browser.order("screenshot", path=os.path.join(os.environ["TASKD_SCREENSHOTS"], name), selector="#goodput")


def goodput_of(stage, manager):
    done = stage.run("goodput", "--manager", manager.address, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kill(manager, *messages):
    """What a launcher says of a job whose rank 1 is killed again and again, which ends after that."""
    messages_of, services = stubs.supervision()
    kinds = messages_of.SupervisionEvent
    with manager.secure_channel() as channel:
        stub = services.SupervisionStub(channel)

        def report(kind, **fields):
            stub.Report(messages_of.ReportEventsRequest(events=[kinds(kind=kind, **{"rank": -1, "node": -1, **fields})]), timeout=HANG_S)
        report(kinds.STARTED)
        for number, message in enumerate(messages):
            report(kinds.EXITED, rank=1, node=0, pid=4711, code=137, signal=9, round=number, restart_count=number)
            report(kinds.RESTARTING, message=message, cause=kinds.RANK_EXIT, round=number, restart_count=number)
            report(kinds.STARTED, round=number + 1, restart_count=number + 1)
        report(kinds.ENDED, code=0, round=len(messages), restart_count=len(messages))


def test_a_killed_rank_is_seen_with_its_price(stage, browser):
    manager = stage.manager(flags=["--nodes", "1", "--procs-per-node", "2"])
    manager.all_on()
    jobs = Jobs(stage)
    goodput_job.write_plan(jobs.folder, steps=160, save_every=40, kill_step=100)
    launcher = jobs.launch(
        "launcher", "--standalone", "--nproc-per-node=2", "--max-restarts=1", "-m", "taskd.torch", script=goodput_job.SCRIPT,
        script_arguments=[jobs.folder],
        environment={"TASKD_MANAGER": manager.address, "PYTHONPATH": harness.PYTHON_PACKAGE, "GLOO_SOCKET_IFNAME": "lo",
                     "TASKD_PROFILING_DIR": os.path.join(stage.folder, "profiling")})
    browser.open(url(manager))
    browser.wait_text("#goodput", "were productive", timeout_s=PATIENCE_S)
    assert launcher.wait(PATIENCE_S) == 0, launcher.log()[-3000:]
    wait_until(lambda: goodput_of(stage, manager)["attempts"][0]["until"], "the job's time stands still")
    goodput = goodput_of(stage, manager)
    browser.wait_text("#goodput .sentence", goodput["text"])
    [[number, _, kind, what, price]] = browser.evaluate(INCIDENTS)
    [incident] = goodput["incidents"]
    assert (number, kind, what) == ("1", "rank_exit", incident["text"]) and "SIGKILL" in what
    assert price.startswith(f"{incident['rank_s']:.1f}\n")
    assert {"restart", "launch", "link_up", "redone"} <= set(incident["seconds"])  # and warm_up, where a first step takes longer
    assert price.endswith(", ".join(f"{category} {part:.1f}" for category, part in incident["seconds"].items())), price
    # The bar and its legend say the same as the numbers.
    seconds = {category: part for category, part in goodput["seconds"].items() if part > 0}
    bar, legend = browser.evaluate(SHARES), browser.evaluate(LEGEND)
    assert list(bar) == list(legend) == list(seconds)
    for category, part in seconds.items():
        assert bar[category] == pytest.approx(part / goodput["rank_s"], abs=0.03), category
        assert float(legend[category].removesuffix(" %")) == pytest.approx(100 * part / goodput["rank_s"], abs=0.06), category
    shot_panel(browser, "goodput.png")
    # So does the report, which has no script.
    report = os.path.join(stage.folder, "report.html")
    assert stage.run("report", "--manager", manager.address, "-o", report).returncode == 0
    browser.open("file://" + report)
    for said in (goodput["text"], incident["text"], f"redone {incident['seconds']['redone']:.1f}"):
        assert said in browser.text("#goodput"), said
    assert browser.evaluate(SHARES) == pytest.approx(bar, abs=0.01)
    shot_panel(browser, "goodput-report.png")
    assert browser.order("errors") == []


def test_a_job_without_time_says_so(manager, browser):
    browser.open(url(manager))
    browser.wait_text("#goodput", "no time yet")
    assert browser.evaluate("document.querySelector('#goodput .shares, #incidents')") is None


def test_of_many_incidents_the_dearest_are_shown_and_their_texts_are_text(stage, browser):
    manager = stage.manager(flags=["--nodes", "1", "--procs-per-node", "2"])
    hostile = ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"><b>", "x" * 400]
    kill(manager, *(hostile * 3))
    goodput = goodput_of(stage, manager)
    assert len(goodput["incidents"]) == 12
    browser.order("size", width=420, height=900)
    browser.open(url(manager))
    browser.wait_text("#goodput", "and 2 more", goodput["text"])
    dearest = sorted(goodput["incidents"], key=lambda incident: -incident["rank_s"])[:10]
    assert [row[0] for row in browser.evaluate(INCIDENTS)] == [str(incident["number"]) for incident in dearest]
    assert [row[3] for row in browser.evaluate(INCIDENTS)] == [incident["text"] for incident in dearest]
    assert browser.evaluate("document.querySelectorAll('#goodput script, #goodput img, #incidents b').length") == 0
    assert browser.evaluate(OUTSIDE) == []
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shot(browser, "goodput-narrow.png")
    assert browser.order("errors") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_category_can_be_told_from_the_card(stage, manager, browser, scheme):
    """3:1 is what a graphic needs (WCAG 1.4.11); stripes have it with one of their two colours."""
    browser.order("scheme", scheme=scheme)
    browser.open(url(manager))
    browser.wait_text("#goodput", "no time yet")
    least = browser.evaluate("""(() => {
      const light = color => { const [r, g, b] = color.match(/[\\d.]+/g).map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const card = light(getComputedStyle(document.querySelector("#goodput")).backgroundColor);
      return Object.fromEntries(%s.map(category => {
        const part = document.querySelector("#goodput").appendChild(document.createElement("span"));
        part.className = `share-${category}`;
        const style = getComputedStyle(part);
        const colors = `${style.backgroundColor} ${style.backgroundImage}`.match(/rgba?\\([^)]*\\)/g).filter(color => !color.endsWith(", 0)"));
        const ratios = colors.map(light).map(other => (Math.max(card, other) + 0.05) / (Math.min(card, other) + 0.05));
        part.remove();
        return [category, Math.max(0, ...ratios)];
      }));
    })()""" % json.dumps(list(goodput_of(stage, manager)["seconds"])))
    assert len(least) == 16 and all(ratio >= 3 for ratio in least.values()), least
