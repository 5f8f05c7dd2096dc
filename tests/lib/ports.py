"""Ports for what a test starts."""
import random
import socket


def free_port():
    """Below the ports that the kernel gives to connections: no other process takes it by chance before the test does."""
    while True:
        port = random.randrange(15000, 30000)
        with socket.socket(socket.AF_INET6) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("::", port))
                return port
            except OSError:
                continue
