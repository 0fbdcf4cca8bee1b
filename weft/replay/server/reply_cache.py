"""The replies to the last requests of every client, so that a request that is sent again is executed once."""

import threading
from collections import OrderedDict
from typing import Any

from weft.replay.server.protocol import Reply

MAX_REPLIES = 64
"""Replies cached per client: more than the changes that a client has in flight at once."""
MAX_CLIENTS = 1024


class PendingReply:
    """The reply to one request, which a thread is executing or has executed."""

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.finished = threading.Event()
        """Set when execution ends. If there is no reply then, it was abandoned, and another thread may try again."""


class ReplyCache:
    """Replies by client and request number. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clients: OrderedDict[str, OrderedDict[int, PendingReply]] = OrderedDict()

    def claim(self, client: str, number: int) -> tuple[PendingReply, bool]:
        """Returns the entry of a request, and whether the caller has to execute the request."""
        with self.lock:
            replies = self.clients.setdefault(client, OrderedDict())
            self.clients.move_to_end(client)
            if number in replies:
                return replies[number], False
            replies[number] = PendingReply()
            _drop_oldest(replies, MAX_REPLIES)
            _drop_oldest(self.clients, MAX_CLIENTS)
            return replies[number], True

    def finish(self, client: str, number: int, reply: Reply | None) -> None:
        """Records the reply to a request; None means that execution was abandoned and may be tried again."""
        with self.lock:
            replies = self.clients.setdefault(client, OrderedDict())
            pending = replies.setdefault(number, PendingReply())
            if reply is None:
                del replies[number]
            pending.reply = reply
            pending.finished.set()

    def snapshot(self) -> list[tuple[str, int, Reply]]:
        """Returns the client, the request number and the reply of every executed request."""
        with self.lock:
            return [
                (client, number, pending.reply)
                for client, replies in self.clients.items()
                for number, pending in replies.items()
                if pending.reply is not None
            ]


def _drop_oldest(entries: OrderedDict[Any, Any], max_entries: int) -> None:
    while len(entries) > max_entries:
        entries.popitem(last=False)
