"""/metrics of manager and proxies (docs/metrics.md), as Prometheus and its own checker read them. What is not installed with
TaskD (promtool, prometheus) is looked for in build/prometheus too; without it these tests are skipped."""
import json
import os
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest
import yaml

import deadlines
import harness
import stubs
from harness import TASKD, clean_environment, wait_until

DEPLOY = os.path.join(stubs.REPOSITORY, "deploy")
RULES = os.path.join(DEPLOY, "prometheus", "alerts.yaml")
SAMPLE = re.compile(r"^(?P<name>[a-z_]+)(\{.*\})? \S+$")


def tool(name):
    path = shutil.which(name) or os.path.join(stubs.REPOSITORY, "build", "prometheus", "usr", "bin", name)
    if not os.path.exists(path):
        pytest.skip(f"{name} is not there: Debian's package prometheus")
    return path


def scrape(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=deadlines.HANG_S) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return answer.read().decode()


def families(text):
    """The samples' lines by the name that their TYPE line gives."""
    found, name = {}, None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            found[name] = []
        elif not line.startswith("#"):
            assert re.sub("_(bucket|sum|count)$", "", SAMPLE.match(line)["name"]) in (name, re.sub("_(bucket|sum|count)$", "", name)), line
            found[name].append(line)
    return found


def documented(section):
    with open(os.path.join(stubs.REPOSITORY, "docs", "metrics.md"), encoding="utf-8") as file:
        text = file.read().split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    return set(re.findall(r"`(taskd_[a-z_]+)", rows))


def simulate(manager, *arguments):
    deadlines.run([TASKD, "simulate", "--manager", manager.address, *arguments], env=clean_environment(), check=True,
                  stdout=subprocess.DEVNULL, timeout_s=200)


@pytest.fixture
def node(stage):
    """A manager and a proxy with two ranks that mark, all kinds switched on: the addresses of their metrics."""
    manager = stage.manager()
    http = f"127.0.0.1:{harness.free_port()}"
    proxy = stage.proxy(manager, flags=["--http", http])
    for rank in (0, 1):
        stage.rank(rank, proxy, pattern="training", rate=200)
    manager.wait_attached([0, 1])
    manager.all_on()
    wait_until(lambda: 'taskd_rank_marks_total{rank="1",kind="communication"} 0' not in scrape(http) and
               'taskd_rank_phase_seconds_total{rank="1",phase="compute"} 0\n' not in scrape(http), "the ranks' marks are counted")
    return manager.http, http


def test_each_metric_is_documented_and_each_documented_one_is_there(node):
    manager, proxy = node
    assert set(families(scrape(manager))) == documented("Manager")
    assert set(families(scrape(proxy))) == documented("Proxy")


def test_prometheus_own_checker_has_nothing_to_say(node):
    for address in node:
        done = deadlines.run([tool("promtool"), "check", "metrics"], input=scrape(address), capture_output=True, text=True,
                             timeout_s=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_proxy_shows_its_ranks(node):
    found = families(scrape(node[1]))
    info = found["taskd_rank_info"]
    assert len(info) == 2 and all('node="0"' in line and 'pid="' in line and 'host="' in line for line in info)
    assert [line.endswith(" 1") for line in found["taskd_rank_attached"]] == [True, True]
    for name in ("taskd_rank_last_mark_timestamp_seconds", "taskd_mark_bytes_total", "taskd_rank_step"):
        assert len(found[name]) == 2 and all(float(line.split()[-1]) > 0 for line in found[name]), found[name]
    assert float(found["taskd_proxy_cpu_seconds_total"][0].split()[-1]) > 0


def test_a_proxys_metrics_are_for_its_user_alone(stage):
    http = f"127.0.0.1:{harness.free_port()}"
    stage.proxy(stage.manager(environment=clean_environment(TASKD_TOKEN="t" * 32), wait=False), flags=["--http", http],
                environment=clean_environment(TASKD_TOKEN="t" * 32, MINDX_TASK_ID=harness.TASK))
    wait_until(lambda: answer(http, "/healthz") == 200, "the proxy answers HTTP")
    assert answer(http, "/metrics") == 401
    assert answer(http, "/metrics", "wrong") == 401
    assert answer(http, "/metrics", "t" * 32) == 401  # the secret itself
    assert answer(http, "/metrics", harness.view_token("t" * 32)) == 200


def answer(address, path, token=None):
    request = urllib.request.Request(f"http://{address}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=deadlines.HANG_S) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def test_an_address_in_use_is_refused(stage):
    manager = stage.manager()
    done = stage.run("proxy", "--manager", manager.address, "--http", manager.http, "--socket", os.path.join(stage.folder, "s"),
                     "--profiling-dir", stage.folder)
    assert done.returncode != 0 and manager.http.split(":")[1] in done.stderr, done.stderr


def test_16384_ranks_are_a_few_hundred_series(manager):
    simulate(manager, "--ranks", "16384", "--steps", "3", "--fault", "compute:7:3@1")
    text = scrape(manager.http)
    assert len(text.encode()) < 300_000
    assert sum(map(len, families(text).values())) < 2000
    assert "taskd_job_ranks 16384\n" in text


def test_hostile_names_stay_labels(stage):
    job = 'name"space/job\\n}'
    manager = stage.manager(job=job)
    text = scrape(manager.http)
    assert r'taskd_job_info{job="name\"space/job\\n}",task_id="e2e-task"} 1' in text
    done = deadlines.run([tool("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, timeout_s=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_alerts_fire_when_they_should():
    tests = os.path.join(stubs.REPOSITORY, "tests", "e2e", "alerts_test.yaml")
    for arguments in (["check", "rules", RULES], ["test", "rules", tests],
                      ["check", "config", "--syntax-only", os.path.join(DEPLOY, "prometheus", "scrape.yaml")]):
        done = deadlines.run([tool("promtool"), *arguments], capture_output=True, text=True, timeout_s=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    with open(RULES, encoding="utf-8") as file:
        rules = {rule["alert"] for group in yaml.safe_load(file)["groups"] for rule in group["rules"]}
    with open(tests, encoding="utf-8") as file:
        tried = {case["alertname"] for test in yaml.safe_load(file)["tests"] for case in test["alert_rule_test"] if case.get("exp_alerts")}
    assert rules == tried
    with open(os.path.join(stubs.REPOSITORY, "docs", "metrics.md"), encoding="utf-8") as file:
        assert rules == set(re.findall(r"^\| `(Taskd\w+)`", file.read(), re.MULTILINE))


def queries():
    """Of the dashboard and of the alerts; those with a threshold that a healthy job does not reach have no samples."""
    with open(os.path.join(DEPLOY, "grafana", "taskd.json"), encoding="utf-8") as file:
        dashboard = json.load(file)
    found = [target["expr"].replace("$instance", ".*") for panel in dashboard["panels"] for target in panel.get("targets", [])]
    with open(RULES, encoding="utf-8") as file:
        found += [rule["expr"] for group in yaml.safe_load(file)["groups"] for rule in group["rules"]]
    return found


def test_every_query_runs_in_prometheus_over_a_real_job(node, tmp_path):
    port = harness.free_port()
    config = {"global": {"scrape_interval": "1s"}, "rule_files": [RULES],
              "scrape_configs": [{"job_name": "taskd", "static_configs": [{"targets": list(node)}]}]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    server = subprocess.Popen([tool("prometheus"), f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
                               f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env=clean_environment())
    try:
        def ask(query):
            url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
            try:
                with urllib.request.urlopen(url, timeout=deadlines.HANG_S) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                return {} if error.code == 503 else json.load(error)  # 503: it is starting
            except OSError:
                return {}

        def count(query):
            return len(ask(query).get("data", {}).get("result", []))

        wait_until(lambda: count("increase(taskd_wall_seconds_total[1m])") == 1 and count("rate(taskd_proxy_cpu_seconds_total[1m])") == 1,
                   "Prometheus has scraped both twice")
        for query in queries():
            reply = ask(query)
            assert reply.get("status") == "success", (query, reply)
            conditional = re.search(r"(>|<|==) *[\d.]+", query) or "taskd_rank_slowdown_ratio" in query
            assert conditional or reply["data"]["result"], f"no sample: {query}"
    finally:
        server.send_signal(signal.SIGTERM)
        deadlines.wait_child(server)
