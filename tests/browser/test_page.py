"""The manager's page in a real browser: what a person sees, and what never happens (docs/operations.md)."""
import json
import os
import signal
import subprocess
import urllib.parse
import urllib.request

import deadlines
import harness
import pytest

from deadlines import HANG_S
from harness import TASKD, clean_environment, wait_until

SLOW = ("--ranks", "16", "--steps", "120", "--fault", "compute:7:1.5@50")
# A pixel of the middle of each row, in the newest step: within the frame's right edge.
PIXELS = """(() => {
  const canvas = document.querySelector("#heatmap");
  if (!canvas?.clientWidth) return null;
  const ratio = canvas.width / canvas.clientWidth;
  const height = canvas.height / ratio - 26, rows = %d;
  const y = row => Math.round((4 + (row + 0.5) * height / rows) * ratio);
  const context = canvas.getContext("2d");
  const edge = context.getImageData(0, y(0), canvas.width, 1).data.findLastIndex((value, i) => i %% 4 === 3 && value > 0) >> 2;
  if (edge < 0) return null;
  return Array.from({length: rows}, (_, row) => Array.from(context.getImageData(edge - Math.round(4 * ratio), y(row), 1, 1).data));
})()"""
# Where the cells begin and end, in CSS pixels of the canvas.
CELLS = """(() => {
  const canvas = document.querySelector("#heatmap");
  const row = canvas.getContext("2d").getImageData(0, 8, canvas.width, 1).data;
  const painted = i => i % 4 === 3 && row[i] === 255;
  const from = Array.from(row.keys()).filter(painted).map(i => i >> 2);
  return [from[0], from.at(-1), canvas.clientWidth];
})()"""


def drawn(browser, rows, is_it=lambda pixels: True):
    """The pixels, once the map is drawn so: numbers on the page may change a frame before it does."""
    seen = {}

    def look():
        pixels = browser.evaluate(PIXELS % rows)
        seen["pixels"] = pixels
        return pixels and pixels[0][3] == 255 and is_it(pixels) and pixels
    try:
        return wait_until(look, "the heat map is drawn")
    except AssertionError as error:
        raise AssertionError(f"{error}; {seen}; the page says: {browser.text('body')}") from error


def shot(browser, name):
    """For whoever wants to look: TASKD_SCREENSHOTS is a folder."""
    if os.environ.get("TASKD_SCREENSHOTS"):
        browser.order("screenshot", path=os.path.join(os.environ["TASKD_SCREENSHOTS"], name), whole=True)


def live(manager):
    """What the page asks for once a second."""
    with urllib.request.urlopen(url(manager) + "api/v1/live", timeout=HANG_S) as answer:
        return answer.read()


def columns(browser):
    """Steps of the heat map's columns, as the keyboard comes to them, once there are any."""
    return wait_until(lambda: browser.evaluate("""(async () => {
      const map = document.querySelector("#heatmap");
      if (!map) return null;
      const go = async (key, shiftKey) => {
        map.dispatchEvent(new KeyboardEvent("keydown", {key, shiftKey, bubbles: true}));
        await new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)));
        const step = document.querySelector("#cell")?.innerText.match(/step (\\d+)/);
        return step ? Number(step[1]) : null;
      };
      let from = await go("ArrowLeft", false);
      if (from === null) return null;
      for (let to; (to = await go("ArrowLeft", true)) !== from; from = to);
      const steps = [from];
      for (let to; (to = await go("ArrowRight", false)) !== steps.at(-1);) steps.push(to);
      return steps;
    })()"""), "the heat map has cells")


def difference(one, other):
    return max(abs(a - b) for a, b in zip(one, other))


def feed(manager, *arguments, background=False):
    command = [TASKD, "simulate", "--manager", manager.address, *arguments]
    if background:
        return subprocess.Popen(command, env=clean_environment(), stdout=subprocess.DEVNULL)
    return deadlines.run(command, 100, env=clean_environment(), check=True, stdout=subprocess.DEVNULL)


def url(manager):
    return f"http://{manager.http}/"


def test_a_slow_rank_is_named_and_seen(manager, browser):
    feed(manager, *SLOW)
    assert browser.open(url(manager)) == 200
    assert browser.wait_text("#verdict", "rank 7").startswith("slow: ")
    row = browser.wait_text("#suspects tbody tr", "rank 7", "slow computation")
    assert "%" in row
    browser.wait_text("#step", "119")
    pixels = drawn(browser, 16, lambda pixels: difference(pixels[7], pixels[6]) > 60)
    others = [pixel for rank, pixel in enumerate(pixels) if rank != 7]
    assert all(difference(pixels[7], other) > 60 for other in others), pixels
    assert all(difference(one, others[0]) < 60 for one in others), pixels
    # Evidence is behind a fold, and opens.
    browser.click("#suspects summary")
    assert "expected" in browser.text("#suspects details[open]")


def test_the_report_needs_no_network(manager, browser, tmp_path):
    feed(manager, *SLOW)
    browser.open(url(manager))
    browser.wait_text("#verdict", "rank 7")
    assert "rank 7" in browser.evaluate(
        "fetch(document.querySelector('a[download]').href).then(response => response.text())")
    file = tmp_path / "a report.html"
    deadlines.run([TASKD, "report", "--manager", manager.address, "-o", str(file)], 100, env=clean_environment(), check=True)
    before = len(browser.order("requests"))
    browser.open(file.as_uri())
    assert "slow: rank 7" in browser.text("h1")
    # Its picture is drawn, rank 7 of another colour than its peers; nothing else was asked for.
    assert browser.evaluate("document.querySelector('image').getBoundingClientRect().height") > 50
    assert all(one["url"].startswith(("file:", "data:")) for one in browser.order("requests")[before:])
    assert browser.order("errors") == []


def test_the_cell_under_pointer_and_keyboard_is_told(manager, browser):
    feed(manager, *SLOW)
    browser.open(url(manager))
    browser.wait_text("#verdict", "rank 7")
    drawn(browser, 16)
    browser.wait_text("#suspects tbody tr", "rank 7")
    box = browser.evaluate("""(() => { const box = document.querySelector("#heatmap").getBoundingClientRect();
                              return [box.left, box.top, box.width, box.height]; })()""")
    browser.order("move", x=box[0] + box[2] - 12, y=box[1] + 4 + (box[3] - 26) * 7.5 / 16)
    told = browser.wait_text("#cell", "rank 7", "step 119", "ms", "×")
    assert "node 0" in told, told
    # By Tab alone: radio buttons, then the map.
    for _ in range(30):
        browser.press("Tab")
        if browser.evaluate("document.activeElement.id") == "heatmap":
            break
    assert browser.evaluate("document.activeElement.id") == "heatmap"
    browser.press("ArrowDown")
    browser.wait_text("#cell", "rank 8", "step 119")
    browser.press("ArrowLeft")
    browser.wait_text("#cell", "rank 8", "step 118")
    browser.press("Enter")
    browser.wait_text("#rank", "Rank 8", "compute", "communication", "Groups: ", "(16 ranks: 0-15)")


def test_other_values_are_drawn(manager, browser):
    feed(manager, *SLOW)
    browser.open(url(manager))
    browser.wait_text("#verdict", "rank 7")
    drawn(browser, 16, lambda pixels: difference(pixels[7], pixels[6]) > 60)
    browser.click("input[type=radio]:not(:checked)")
    drawn(browser, 16, lambda pixels: difference(pixels[7], pixels[6]) < 30)  # all ranks take as long for a whole step


def test_few_steps_begin_at_the_left_beside_their_ranks(manager, browser):
    feed(manager, "--ranks", "4", "--steps", "6")
    browser.open(url(manager))
    browser.wait_text("#step", "5")
    drawn(browser, 4)
    shot(browser, "few-steps.png")
    # A row that no label is in: those are at the rows' middles.
    first, last, width = browser.evaluate(CELLS)
    assert first < 100 and last < width / 4, (first, last, width)


def test_a_narrow_window_holds_everything(manager, browser):
    feed(manager, *SLOW)
    browser.order("size", width=420, height=900)
    browser.open(url(manager))
    browser.wait_text("#verdict", "rank 7")
    drawn(browser, 16)
    shot(browser, "narrow.png")
    assert browser.evaluate("""Array.from(document.querySelectorAll("section:not([hidden]), header")).flatMap(card => {
        const end = card.getBoundingClientRect().right;
        return Array.from(card.querySelectorAll("*")).filter(part => part.getBoundingClientRect().right > end)
          .map(part => `${part.tagName} ${part.className}: ${part.innerText}`);
      })""") == []
    # What has many columns is scrolled within its card.
    browser.click("#suspects button")
    browser.wait_text("#rank", "whole, ms")
    browser.click("#suspects summary")
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_rank_clicked_last_is_shown_whoever_answers_last(manager, browser):
    feed(manager, *SLOW)
    browser.open(url(manager))
    browser.wait_text("#verdict", "rank 7")
    drawn(browser, 16)
    # Each answer about a rank waits until it is let go.
    browser.evaluate("""(() => {
      window.held = {};
      const fetchNow = window.fetch;
      window.fetch = async (path, ...rest) => {
        const rank = /rank\\/(\\d+)/.exec(path)?.[1];
        if (rank) await new Promise(resolve => { window.held[rank] = resolve; });
        return fetchNow(path, ...rest);
      };
    })()""")
    for row in (1, 2):
        box = browser.evaluate("(() => { const box = document.querySelector('#heatmap').getBoundingClientRect(); return [box.left, box.top, box.height]; })()")
        browser.order("press_at", x=box[0] + 100, y=box[1] + 4 + (box[2] - 26) * (row + 0.5) / 16)
        browser.wait_text("#rank", f"Rank {row}", "Asking")
        wait_until(lambda: browser.evaluate(f"{row} in window.held"), "it is asked for")
    browser.evaluate("window.held[2]()")
    browser.wait_text("#rank", "Rank 2", "(16 ranks: 0-15)")
    browser.evaluate("window.held[1]()")
    # What comes after the answer about rank 1: a round of the page.
    asked = len(browser.order("requests"))
    wait_until(lambda: len(browser.order("requests")) > asked + 2, "the page goes on")
    assert "(16 ranks: 0-15)" in browser.text("#rank") and "Rank 2" in browser.text("#rank")


def test_an_empty_manager_says_what_to_do(manager, browser):
    browser.open(url(manager))
    browser.wait_text("#hint", "taskd run")
    assert browser.text("#state") == "no job yet"
    assert browser.text("#verdict").startswith("cannot say: ")


def test_marks_that_are_off_name_the_command(stage, manager, browser):
    manager.all_off()
    stage.rank(0, stage.proxy(manager))
    browser.open(url(manager))
    browser.wait_text("#hint", "Steps are not marked", "taskd switch step=on")
    manager.all_on()
    browser.wait_text("#switches", "step\non", "All ranks have it so", "taskd switch communication=off")
    wait_until(lambda: "Steps are not marked" not in (browser.text("#hint") or ""), "the page has seen the switch")


def test_updates_while_the_job_runs_at_most_one_request_a_second(manager, browser):
    job = feed(manager, "--ranks", "8", "--steps", "100000", "--rate", "4", background=True)
    try:
        browser.open(url(manager))
        first = int(wait_until(lambda: (text := browser.text("#step")) and text.isdigit() and text, "there is a step"))
        wait_until(lambda: int(browser.text("#step")) >= first + 12, "steps go on")
        asked = [one["at"] for one in browser.order("requests") if "/api/" in one["url"]][2:]
        assert len(asked) >= 2
        assert (asked[-1] - asked[0]) / (len(asked) - 1) >= 950
    finally:
        job.kill()
        job.wait()


def test_dark_mode(manager, browser):
    feed(manager, *SLOW)
    light = contrast(browser, manager, "light")
    dark = contrast(browser, manager, "dark")
    assert light["page"] != dark["page"]
    for scheme in (light, dark):
        assert scheme["worst"] >= 4.5, scheme


def contrast(browser, manager, scheme):
    """The least contrast of a text that is seen to what is behind it."""
    browser.order("scheme", scheme=scheme)
    browser.open(url(manager))
    browser.wait_text("#verdict", "rank 7")
    return browser.evaluate("""(() => {
      const light = color => { const [r, g, b] = color.match(/[\\d.]+/g).map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const behind = element => { for (; element; element = element.parentElement) {
        const color = getComputedStyle(element).backgroundColor; if (!color.endsWith(", 0)")) return color; } return "rgb(255, 255, 255)"; };
      let worst = 99, what = "";
      for (const element of document.querySelectorAll("main *")) {
        if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()) || !element.offsetParent) continue;
        const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < worst) { worst = contrast; what = element.outerHTML.slice(0, 200); }
      }
      return {worst, what, page: getComputedStyle(document.body).backgroundColor};
    })()""")


def test_a_lost_manager_leaves_the_last_picture_and_says_since_when(manager, browser):
    feed(manager, *SLOW)
    browser.open(url(manager))
    browser.wait_text("#verdict", "rank 7")
    manager.kill()
    browser.wait_text("#lost", "has not answered since")
    assert "rank 7" in browser.text("#verdict")


def test_a_manager_that_is_started_again_is_shown_from_its_beginning(stage, browser):
    manager = stage.manager()
    feed(manager, *SLOW)
    browser.open(url(manager))
    browser.wait_text("#verdict", "rank 7")
    for _ in range(2):
        manager.kill()
        browser.wait_text("#lost", "has not answered since")
        manager = stage.manager(port=manager.port, http=manager.http)
        wait_until(lambda: browser.text("#lost") is None, "the page sees it again")
        assert browser.text("#step") == "–"
        feed(manager, "--ranks", "16", "--steps", "40", "--fault", "compute:3:1.5@20")
        browser.wait_text("#step", "39")
        assert columns(browser) == list(range(1, 40))  # a step's length is known from the second one on
        drawn(browser, 16, lambda pixels: difference(pixels[3], pixels[7]) > 60)


def test_a_tab_that_slept_shows_what_it_missed(manager, browser):
    job = feed(manager, "--ranks", "8", "--steps", "100000", "--rate", "10", background=True)
    try:
        browser.open(url(manager))
        wait_until(lambda: (text := browser.text("#step")) and text.isdigit() and int(text) > 5, "steps go on")
        browser.signal_pages(signal.SIGSTOP)
        wait_until(lambda: json.loads(live(manager))["step"] > 100, "the job goes on")
        browser.signal_pages(signal.SIGCONT)
        wait_until(lambda: int(browser.text("#step")) > 100, "the page goes on")
        seen = columns(browser)
        assert len(seen) > 100 and seen == list(range(seen[0], seen[-1] + 1))
        assert browser.order("errors") == []
    finally:
        job.kill()
        job.wait()


def test_16384_ranks(manager, browser):
    feed(manager, "--ranks", "16384", "--dp", "16384", "--ranks-per-node", "64", "--steps", "12", "--fault",
         "compute:9000:2@5")
    browser.open(url(manager))
    browser.wait_text("#ranks", "16384", timeout_s=60)
    # 32 ranks a row, and not as many pixels as rows: yet the one of 16,384 is seen, and nothing else is as strange.

    def strange(pixels):
        usual = sorted(pixels)[len(pixels) // 2]
        return [row for row, pixel in enumerate(pixels) if difference(pixel, usual) > 90]
    assert set(strange(drawn(browser, 512, strange))) <= {280, 281, 282}
    assert browser.evaluate("document.querySelector('#heatmap').clientHeight") < 500
    assert len(live(manager)) < 200_000, "asked once a second, over a network"


def test_nothing_leaves_the_origin_and_nothing_is_complained_of(manager, browser):
    feed(manager, *SLOW)
    browser.open(url(manager))
    browser.wait_text("#verdict", "rank 7")
    browser.click("#suspects button")
    browser.wait_text("#rank", "Rank 7")
    assert {urllib.parse.urlsplit(one["url"]).netloc for one in browser.order("requests")} == {manager.http}
    assert browser.order("errors") == []


@pytest.mark.parametrize("name", ["<script>alert(1)<script>", "<img src=x onerror=alert(1)>", "\"><img src=x onerror=alert(1)>",
                                  "a'b\"c&amp;", "\u202egnp.exe", "x" * 490],
                         ids=["script", "element", "attribute", "quotes", "rtl", "long"])
def test_a_hostile_name_is_text(stage, browser, name):
    manager = stage.manager(job=f"ns/{name}")
    browser.open(url(manager))
    browser.wait_text("#hint", "taskd run")
    assert browser.evaluate("document.querySelector('.job').firstChild.data") == f"ns/{name}"
    assert browser.evaluate("document.querySelectorAll('main script, main img').length") == 0
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert {urllib.parse.urlsplit(one["url"]).path for one in browser.order("requests")}.isdisjoint({"/x"})
    assert browser.order("errors") == []


def test_a_token_in_the_address_becomes_a_cookie(stage, browser):
    environment = clean_environment(TASKD_TOKEN="a secret/with & signs")
    manager = stage.manager(environment=environment, wait=False)
    wait_until(lambda: "listen" in manager.log() or "answers gRPC" in manager.log(), "the manager is up")
    assert browser.open(url(manager)) == 401
    shown = subprocess.run([TASKD, "ui", "--manager", manager.address], env=environment, capture_output=True, text=True, check=True)
    address = shown.stdout.strip()
    assert address == url(manager) + "?token=" + harness.view_token("a secret/with & signs")
    assert browser.open(address) == 200
    browser.wait_text("#hint", "taskd run")
    assert browser.evaluate("location.href") == url(manager)
    assert browser.evaluate("document.cookie") == ""
    [cookie] = browser.order("cookies")
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and "secret" not in cookie["value"]


def test_ui_prints_the_address(manager, tmp_path):
    shown = subprocess.run([TASKD, "ui", "--manager", manager.address], env=clean_environment(), capture_output=True, text=True)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, url(manager) + "\n", "")
    nobody = subprocess.run([TASKD, "ui", "--manager", "127.0.0.1:1"], env=clean_environment(), capture_output=True, text=True)
    assert nobody.returncode == 1 and "127.0.0.1:1" in nobody.stderr and not nobody.stdout
