"""The rank's client of the launcher's store, where PyTorch was built without libuv, as Debian's is from 2.4 on.

Where a launcher serves the store, torch's rendezvous makes a client of it with use_libuv left at True, whatever USE_LIBUV
says. Such a build refuses that, although only a server would need libuv; so the client is made again with False. What
the program itself asks of TCPStore is answered as ever. Not one of the hooks that disable() takes away.
"""
import functools
import os

from taskd.torch import _imports


def arm():
    """Does nothing where no launcher serves the store."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        _imports.when_imported("torch.distributed.rendezvous", _install)


def _install(rendezvous):
    original = rendezvous.TCPStore
    if getattr(original, "__taskd_client__", False):
        return

    @functools.wraps(original, updated=())
    def tcp_store(*arguments, **options):
        try:
            return original(*arguments, **options)
        except RuntimeError as error:  # before anything was connected
            if options.get("is_master") is not False or "use_libuv" in options or "libuv" not in str(error):
                raise
        return original(*arguments, use_libuv=False, **options)

    tcp_store.__taskd_client__ = True
    rendezvous.TCPStore = tcp_store
