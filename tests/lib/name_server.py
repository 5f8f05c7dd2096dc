"""Runs a command in a network of its own, with a hosts file, a resolv.conf and a DNS server of its own (needs root).

    name_server.py '{"hosts": "127.0.0.1 a\\n", "resolv": "nameserver 127.0.0.53\\n", "zone": {"a.b": "127.0.0.1"}, "after_s": 0}' COMMAND...

`resolv` null: there is no resolv.conf. The server knows the names of `zone` only `after_s` seconds after its start; a name
has A records or AAAA records, after its address.
"""
import ipaddress
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time


def answer(query, zone):
    """The reply to one DNS query."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode())
        at += 1 + query[at]
    question = query[12:at + 5]
    kind, = struct.unpack_from("!H", query, at + 1)
    known = zone.get(".".join(labels).lower())
    address = ipaddress.ip_address(known).packed if known else b""
    record = b""
    if known and kind == (1 if len(address) == 4 else 28):
        record = struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(address)) + address
    flags = 0x8180 | (0 if known else 3)  # a reply, no such name
    return query[:2] + struct.pack("!HHHHH", flags, 1, 1 if record else 0, 0, 0) + question + record


def serve(address, zone, after_s):
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind((address, 53))
    begin = time.monotonic()

    def run():
        while True:
            query, client = listener.recvfrom(4096)
            listener.sendto(answer(query, zone if time.monotonic() - begin >= after_s else {}), client)
    threading.Thread(target=run, daemon=True).start()


def main():
    given, command = json.loads(sys.argv[1]), sys.argv[2:]
    if os.environ.get("TASKD_NAME_SERVER") != "inside":
        os.environ["TASKD_NAME_SERVER"] = "inside"
        os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv])
    del os.environ["TASKD_NAME_SERVER"]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/etc"], check=True)  # in this mount namespace alone
    for path, text in (("/etc/hosts", given["hosts"]), ("/etc/resolv.conf", given["resolv"])):
        if text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    serve(given["server"], given["zone"], given["after_s"])
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
