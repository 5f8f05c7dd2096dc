"""Ports for what a test starts."""
import random
import socket

_held = []  # a socket for each port that this process has been given


def free_port():
    """A port that nobody listens on and that no other test is given while this process lives.

    It lies below the ports that the kernel gives to connections (32768 and up), so that no connection takes it by chance,
    and it is held by an abstract Unix address until the process ends: what is to listen there may start much later.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET  # a user of the quick start may have no IPv6
    while True:
        port = random.randrange(15000, 30000)
        holder = socket.socket(socket.AF_UNIX)
        try:
            holder.bind(f"\0taskd-test-port-{port}")
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
        except OSError:
            holder.close()
            continue
        _held.append(holder)
        return port
