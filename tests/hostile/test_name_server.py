"""What a hostile DNS server, or whoever answers in its place, can do to what asks for a name: nothing but that there is none."""
import json
import os
import re
import sys

import pytest

import deadlines
import name_server
from harness import BUILD, TASKD, clean_environment
from namespaces import missing_privilege

RESOLV = "nameserver 127.0.0.53\noptions timeout:1 attempts:1\n"
# Both of the program's resolvers: gRPC's, and getaddrinfo().
ASK = """
("$1" status --manager evil.test:9601 2>&1; echo "code $?") > "$2/status" &
("$1" run --nnodes 2 --node-rank 1 --rdzv-endpoint evil.test:29500 --rdzv-conf timeout=1,join_timeout=1,read_timeout=1 \
      --no-python /bin/true 2>&1; echo "code $?") > "$2/run" &
wait
"""


with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as file:
    STATIC = "TASKD_STATIC:BOOL=ON" in file.read()


@pytest.mark.skipif(not STATIC, reason="another program than the static one resolves names as its libraries do")
@pytest.mark.root("a network of its own")
@pytest.mark.parametrize("way", name_server.HOSTILE)
def test_ends_with_one_line(tmp_path, way):
    if missing_privilege():
        pytest.skip(missing_privilege())
    setting = json.dumps({"hosts": "127.0.0.1 localhost\n", "resolv": RESOLV, "server": "127.0.0.53", "hostile": way})
    done = deadlines.run([sys.executable, name_server.__file__, setting, "sh", "-c", ASK, "sh", TASKD, str(tmp_path)],
                         env=clean_environment(TASKD_TOKEN="secret"), capture_output=True, text=True, timeout_s=60, check=False)
    told = {name: (tmp_path / name).read_text() for name in ("status", "run")}
    print(told, done.stderr)
    # Only `many` are addresses of that name; whatever else an answer has is believed by nobody.
    status = "Connection refused: is the job running\\?" if way == "many" else "its host name is not known"
    assert re.fullmatch(f"taskd status: manager evil\\.test:9601 cannot be reached: {status}\ncode 1\n", told["status"])
    assert re.fullmatch("taskd run: no launcher to be reached at evil\\.test:29500 within 1 s: .*\ncode 1\n", told["run"])
    assert ("Connection refused" in told["run"]) == (way == "many")
    assert int(re.search(r"peak KiB: (\d+)", done.stderr)[1]) < 64 << 10
