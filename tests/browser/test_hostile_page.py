"""What pages of strangers can do to the manager's page in a real browser of its user (docs/security-model.md)."""
import http.server
import json
import threading
import urllib.parse

import harness
import pytest

from harness import clean_environment, wait_until

PATHS = ("/", "/metrics", "/api/v1/live")
# What a page gets from `address`: [status, text], or the name of the error.
FETCH = """fetch(%s, %s).then(async response => [response.status, await response.text()], error => error.name)"""


class Stranger:
    """A server at another port, so another origin; its page is `page`. What it was asked is in `asked`."""

    def __init__(self):
        self.page, self.asked = "", []
        stranger = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                stranger.asked.append((self.path, dict(self.headers)))
                body = stranger.page.encode() if self.path == "/" else b"the stranger's own"
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Referrer-Policy", "unsafe-url")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, host):
        return f"http://{host}:{self.port}/"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def stranger():
    stranger = Stranger()
    yield stranger
    stranger.close()


def url(manager):
    return f"http://{manager.http}/"


def port(manager):
    return manager.http.rpartition(":")[2]


def fetch(browser, address, **options):
    return browser.evaluate(FETCH % (json.dumps(address), json.dumps(options)))


def with_token(stage, name, secret):
    manager = stage.manager(name=name, environment=clean_environment(TASKD_TOKEN=secret), wait=False)
    wait_until(lambda: "answers gRPC" in manager.log() or "listen" in manager.log(), "the manager is up")
    return manager, url(manager) + "?token=" + harness.view_token(secret)


@pytest.mark.parametrize("mode, refused", [("own-user", 403), ("token", 401), ("plaintext", 403)])
def test_a_name_that_leads_here_later(stage, browser, mode, refused):
    """A page from evil.example, whose name now is this machine's address, is of the same origin as what answers there."""
    if mode == "token":
        manager, address = with_token(stage, "manager", "a secret")
        assert browser.open(address) == 200  # the user has a cookie
    else:
        manager = stage.manager(flags=("--allow-plaintext",) if mode == "plaintext" else ())
        assert browser.open(url(manager)) == 200
    for name in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example"):
        origin = f"http://{name}:{port(manager)}"
        assert browser.open(origin + "/") == refused
        assert browser.open(origin + "/healthz") == 200  # in the place of the page that was there before
        for path in PATHS:
            status, text = fetch(browser, path)
            assert status == refused and "taskd_" not in text and manager.job not in text, text
    assert all(cookie["domain"] == "127.0.0.1" for cookie in browser.order("cookies"))


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1"])
@pytest.mark.parametrize("element", ['<iframe src="{}"></iframe>', '<object data="{}" type="text/html"></object>', '<embed src="{}">'],
                         ids=["iframe", "object", "embed"])
def test_no_frame_of_a_stranger_shows_it(manager, browser, stranger, host, element):
    assert browser.open(url(manager)) == 200
    browser.wait_text("#hint", "taskd run")
    own = stranger.url(host) + "own"
    stranger.page = element.format(own) + element.format(url(manager)) + element.format(url(manager) + "metrics")
    browser.open(stranger.url(host))
    wait_until(lambda: len([error for error in browser.order("errors") if "frame-ancestors" in error]) >= 2,
               "the browser has refused both frames")
    frames = browser.order("frames")[1:]
    assert "the stranger's own" in [frame["text"] for frame in frames]  # frames are shown here
    assert not [frame for frame in frames if frame["url"].startswith(url(manager))], frames
    assert not [frame for frame in frames if "taskd" in (frame["text"] or "")], frames


def test_the_token_stays_nowhere(stage, browser, stranger):
    manager, address = with_token(stage, "manager", "a secret")
    token = urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)["token"][0]
    assert browser.open(address) == 200
    browser.wait_text("#hint", "taskd run")
    assert browser.evaluate("location.href") == url(manager)
    assert browser.evaluate("performance.getEntries().map(entry => entry.name).filter(name => name.includes('token='))") == []
    # Nothing is fetched from elsewhere; a link followed says not whence.
    assert fetch(browser, stranger.url("127.0.0.1") + "fetched") == "TypeError"
    browser.evaluate(f"""{{ const link = document.createElement("a"); link.href = "{stranger.url('127.0.0.1')}followed";
                           link.id = "away"; link.innerText = "away"; document.body.prepend(link); }}""")
    browser.click("#away")
    wait_until(lambda: stranger.asked, "the link is followed")
    browser.wait_text("body", "the stranger's own")
    assert browser.evaluate("document.referrer") == ""
    assert [path for path, _ in stranger.asked if path != "/favicon.ico"] == ["/followed"]
    assert not [headers for _, headers in stranger.asked if "Referer" in headers or token in str(headers)]
    visited = browser.order("history")
    assert url(manager) in visited and not [one for one in visited if token in one], visited


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1"])
def test_another_origin_reads_and_changes_nothing(manager, browser, stranger, host):
    manager.all_on()
    before = manager.get()
    assert browser.open(url(manager)) == 200
    stranger.page = "the stranger's page"
    browser.open(stranger.url(host))
    assert fetch(browser, stranger.url(host) + "own") == [200, "the stranger's own"]
    for path in PATHS:
        target = url(manager)[:-1] + path
        for method in ("GET", "POST", "PUT", "DELETE"):
            assert fetch(browser, target, method=method, credentials="include") == "TypeError", (path, method)
        # What is sent without asking first is not read.
        for method in ("GET", "POST"):
            assert fetch(browser, target, method=method, mode="no-cors", credentials="include") == [0, ""]
        # As a script it is not run.
        loaded = browser.evaluate(f"""new Promise(resolve => {{
          const script = document.createElement("script"); script.src = {json.dumps(target)};
          script.onload = () => resolve(true); script.onerror = () => resolve(false); document.head.append(script); }})""")
        assert not loaded, path
    # The gRPC port takes nothing that a browser can send.
    for mode in ("cors", "no-cors"):
        assert fetch(browser, f"http://{manager.address}/taskd.v1.Manager/SetSwitch", method="POST", mode=mode) == "TypeError"
    # A form is a navigation: the answer is shown, not to the stranger, and nothing has happened.
    for target in (url(manager), url(manager) + "api/v1/live"):
        browser.open(stranger.url(host))
        browser.evaluate(f"""{{ const form = document.createElement("form"); form.method = "post"; form.action = {json.dumps(target)};
                               form.innerHTML = "<input name=switch value=off><button id=send>send</button>"; document.body.append(form); }}""")
        browser.click("#send")
        wait_until(lambda target=target: browser.evaluate("location.href") == target, "the form is sent")
        assert browser.evaluate("performance.getEntriesByType('navigation')[0].responseStatus") == 405
    manager.require_alive()
    assert manager.get() == before


def test_a_cookie_is_good_for_its_manager_alone(stage, browser):
    one, one_address = with_token(stage, "one", "the same secret")
    other, other_address = with_token(stage, "other", "the same secret")
    assert browser.open(one_address) == 200
    assert browser.open(url(other)) == 401
    [cookie] = browser.order("cookies")
    assert cookie["name"] == f"taskd_{port(one)}"
    forged = {**cookie, "name": f"taskd_{port(other)}"}
    browser.order("add_cookie", cookie=forged)
    assert browser.open(url(other)) == 401
    # Both at once, in one browser.
    assert browser.open(other_address) == 200
    assert browser.open(url(one)) == 200
    assert browser.open(url(other)) == 200


@pytest.mark.parametrize("link", ["without the token", "with the token"])
def test_a_cookie_goes_with_no_strangers_request(stage, browser, stranger, link):
    """Not even with a click on a link: the user opens the address himself."""
    manager, address = with_token(stage, "manager", "a secret")
    if link == "without the token":
        assert browser.open(address) == 200
    stranger.page = f'<a id="there" href="{url(manager) if link == "without the token" else address}">there</a>'
    browser.open(stranger.url("evil.example"))
    browser.click("#there")
    browser.wait_text("body", "taskd token")  # 401
    assert browser.evaluate("location.href") == url(manager)
    assert browser.open(url(manager)) == 200
