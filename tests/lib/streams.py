"""Streams of gRPC whose messages are said one by one."""
import queue

import grpc


class Stream:
    """Says `messages` and stays open until it is ended. Messages are bytes; with `answer`, the class of those that come, they are built.

    `alone`: it says that it is the only one of its connection, as a proxy's does.
    """

    def __init__(self, channel, method, messages=(), answer=None, alone=False):
        self.said = queue.Queue()
        for message in messages:
            self.say(message)
        self.call = channel.stream_stream(method, response_deserializer=answer and answer.FromString)(
            iter(self.said.get, None), metadata=(("taskd-only-call", "1"),) if alone else None)

    def say(self, message):
        self.said.put(message if isinstance(message, bytes) else message.SerializeToString())

    def next(self):
        return next(self.call)

    def end(self):
        """Nothing follows."""
        self.said.put(None)

    def code(self):
        """Reads to the end."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        self.end()
        return self.call.code()

    def close(self):
        self.end()
        self.call.cancel()
