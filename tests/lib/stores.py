"""Starts `taskd store`, roots and tiers, for tests."""
import json
import os
import re

import harness
import tcpstore

# A store takes clients without VALIDATE for 1.x by default.
SERVED_BY = {"1.x": "auto", "2.1": "2.1", "2.x": "auto"}


# Between two turns of an event loop a store takes no more CPU time than this, whatever its peers do. Requests at the limit
# of keys take longer: their tests are marked "longest_turn".
LONGEST_TURN_MS = 50
TURN_WATCH = os.path.join(harness.BUILD, "tests", "turn_watch.so")
DYNAMIC = os.path.join(harness.BUILD, "tests", "taskd_dynamic")  # nothing can be preloaded into a static program


class StoreProcess(harness.Process):
    """A `taskd store` that is ready. Its turns are measured (turn_watch.cc) unless the build has sanitizers."""

    def __init__(self, folder, listen="127.0.0.1:0", upstream=None, dialect="auto", flags=("--stats-s", "0.05"),
                 name="store", prefix=()):
        self.listen, self.upstream, self.dialect = listen, upstream, dialect
        program = DYNAMIC if os.path.exists(DYNAMIC) else harness.TASKD
        command = [*prefix, program, "store", "--listen", listen, "--dialect", dialect, *flags]
        if upstream:
            command += ["--upstream", upstream]
        self.turn_log = os.path.join(folder, f"{name}.turns")
        is_static = program == harness.TASKD and harness.build_variable("TASKD_STATIC") == "ON"
        self.turns_are_measured = os.path.exists(TURN_WATCH) and not is_static
        environment = {"LD_PRELOAD": TURN_WATCH, "TASKD_TURN_LOG": self.turn_log} if self.turns_are_measured else {}
        super().__init__(name, command, harness.clean_environment(**environment), folder)
        found = harness.wait_until(lambda: self.require_alive() and re.search(r"^listening (.+):(\d+)$", self.log(), re.M),
                                   f"{name} prints where it listens")
        self.host, self.port = found.group(1), int(found.group(2))
        self.address = f"{self.host}:{self.port}"

    def longest_turn_ms(self):
        """0 where all were shorter than a millisecond; None where they are not measured."""
        if not self.turns_are_measured:
            return None
        if not os.path.exists(self.turn_log):
            return 0.0
        with open(self.turn_log, encoding="ascii") as file:
            return max(map(float, file), default=0.0)

    def stats_lines(self):
        lines = self.log().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def stats(self):
        """Counted after the call."""
        seen = len(self.stats_lines())
        return harness.wait_until(lambda: self.require_alive() and self.stats_lines()[seen + 1:],
                                  f"{self.name} prints statistics")[-1]

    def wait_stats(self, condition, what):
        return harness.wait_until(lambda: (lambda stats: condition(stats) and stats)(self.stats()), what)

    def client(self, dialect="2.x", **arguments):
        return tcpstore.TCPStore(self.host.strip("[]"), self.port, dialect, **arguments)


class World:
    """A root and, by `shape`, what is below it: "root", "tiers" (two), "tiers of tiers" (two below one, one more beside it).

    `places` are where clients are spread over, those that are farthest from each other first.
    """

    SHAPES = ("root", "tiers", "tiers of tiers")

    def __init__(self, stage, shape="root", dialect="auto"):
        self._stage, self._dialect = stage, dialect
        self._clients = []
        self.root = self.store("root")
        if shape == "root":
            self.tiers = []
        elif shape == "tiers":
            self.tiers = [self.store("tier-a", self.root), self.store("tier-b", self.root)]
        else:
            middle = self.store("middle", self.root)
            self.tiers = [self.store("tier-a", middle), self.store("tier-b", self.root), self.store("tier-c", middle), middle]
        self.places = self.tiers + [self.root]

    def store(self, name, upstream=None, **arguments):
        process = StoreProcess(self._stage.folder, name=name, upstream=upstream and upstream.address,
                               dialect=self._dialect, **arguments)
        self._stage.processes.append(process)
        return process

    def client(self, place=0, dialect="2.x", **arguments):
        """A client at places[place], counted around."""
        client = self.places[place % len(self.places)].client(dialect, **arguments)
        self._clients.append(client)
        return client

    def close(self):
        for client in self._clients:
            client.close()
