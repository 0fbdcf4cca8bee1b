"""Executes requests on tables: every change exactly once, in an order that the journal records.

A request is identified by its client and its number. A client that does not know whether a change was executed sends
the request again and gets the cached reply (see `reply_cache`). If the first request still waits for a limiter, the
repeated one waits for its reply.

With a journal, requests that change a table are executed one at a time, and recorded in that order before they are
acknowledged. Samples are recorded too, because they advance the table's random state and its counts. Executing the
journal's requests on the last checkpoint therefore restores the exact state.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from weft.errors import WeftError, unknown
from weft.replay.blocking import LimiterTimeout
from weft.replay.server import wire
from weft.replay.server.frame_header import Limits
from weft.replay.server.journal import Journal
from weft.replay.server.methods import METHODS, Method, sample_bytes
from weft.replay.server.protocol import Reply, Request
from weft.replay.server.reply_cache import ReplyCache
from weft.replay.table import Table

POLL_SECONDS = 0.25
"""Interval at which a waiting request checks whether its client is still connected."""


class WouldBlock(Exception):
    """The request cannot be executed without waiting."""


class ChangeCounter:
    """Counts the changes of a table; threads can wait for the next one."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.count = 0

    def increment(self) -> None:
        with self.condition:
            self.count += 1
            self.condition.notify_all()

    def wait_for_change(self, count: int, timeout: float) -> None:
        """Returns when the counter differs from `count`, or after the timeout."""
        with self.condition:
            self.condition.wait_for(lambda: self.count != count, timeout)


class RequestHandler:
    """Executes the requests of all clients on a set of tables. Thread-safe."""

    def __init__(self, tables: Iterable[Table], *, limits: Limits | None = None) -> None:
        self.tables = {table.name: table for table in tables}
        self.limits = limits or Limits()
        self.replies = ReplyCache()
        self.journal: Journal | None = None
        self.change_lock = threading.RLock()
        """Held for a change and its record, so that the journal has changes in the order of their execution."""
        self.save_checkpoint: Callable[[], str] | None = None
        """Writes a checkpoint and returns its path."""
        self.changes = {name: ChangeCounter() for name in self.tables}

    def describe_tables(self) -> dict[str, Any]:
        """Returns each table's columns and sizes; tables with the same `store` number share a store."""
        stores = list({id(table.store): None for table in self.tables.values()})
        return {
            name: {
                "columns": [[column.name, column.dtype.str, column.shape] for column in table.store.structure.columns],
                "length": table.length,
                "rows": table.store.rows,
                "steps_per_row": table.store.steps_per_row,
                "store": stores.index(id(table.store)),
            }
            for name, table in self.tables.items()
        }

    def handle(self, request: Request, *, wait: bool = True, connected: Callable[[], bool] = lambda: True) -> Reply:
        """Executes a request.

        Raises `WouldBlock` if it has to wait although `wait` is false, or its client is no longer `connected`.
        """
        if request.method == "ping":
            return Reply()
        if request.method == "checkpoint":
            return self._checkpoint(wait)
        method, table = self._find(request)
        if not method.changes_table:
            return method.run(table, request)
        deadline = None if request.timeout is None else time.monotonic() + request.timeout
        if not method.caches_reply:
            return self._execute_when_allowed(method, table, request, deadline, wait, connected)
        while True:
            pending, is_new = self.replies.claim(request.client, request.number)
            if is_new:
                return self._execute_and_cache(method, table, request, deadline, wait, connected)
            if not wait and not pending.finished.is_set():
                raise WouldBlock
            pending.finished.wait()
            if pending.reply is not None:
                if (journal := self.journal) is not None:
                    journal.wait_until_durable(journal.size)
                return pending.reply

    def reply_bytes(self, request: Request) -> int:
        """Returns the approximate bytes of the reply's arrays; 0 for small replies and for invalid requests."""
        table, n = self.tables.get(request.table), request.args.get("n")
        if request.method != "sample" or table is None or type(n) is not int:
            return 0
        size = sample_bytes(table, n)
        return size if size <= self.limits.frame else 0

    def redo(self, record: wire.Message) -> None:
        """Executes a request from the journal again."""
        request = Request.parse(record.head["client"], record)
        method, table = self._find(request)
        try:
            reply = method.run(table, request)
        except Exception:  # It failed in the same way the first time, and its client was told.
            return
        if method.caches_reply:
            self.replies.finish(request.client, request.number, reply)

    def _find(self, request: Request) -> tuple[Method, Table]:
        if request.method not in METHODS:
            raise unknown("method", request.method, METHODS)
        if request.table not in self.tables:
            raise unknown("table", request.table, self.tables)
        method, table = METHODS[request.method], self.tables[request.table]
        n = request.args.get("n")
        if type(n) is int and sample_bytes(table, n) > self.limits.frame:
            raise WeftError(
                f"a sample of {n:,} items exceeds the limit of {self.limits.frame:,} bytes: sample fewer items"
            )
        return method, table

    def _execute_and_cache(self, method: Method, table: Table, request: Request, *rest: Any) -> Reply:
        reply = None
        try:
            reply = self._execute_when_allowed(method, table, request, *rest)
            return reply
        finally:
            if reply is None or self.journal is None:
                self.replies.finish(request.client, request.number, reply)

    def _execute_when_allowed(
        self,
        method: Method,
        table: Table,
        request: Request,
        deadline: float | None,
        wait: bool,
        connected: Callable[[], bool],
    ) -> Reply:
        """Executes a request as soon as the table's limiter allows it."""
        changes = self.changes[table.name]
        while True:
            count = changes.count
            if not connected():
                raise WouldBlock
            try:
                reply = self._execute(method, table, request)
                changes.increment()
                return reply
            except LimiterTimeout as error:
                if not method.may_wait:
                    raise
                remaining = POLL_SECONDS if deadline is None else deadline - time.monotonic()
                if remaining <= 0:
                    raise LimiterTimeout(error.call, error.reason, f"{request.timeout:g}") from None
                if not wait:
                    raise WouldBlock from None
            changes.wait_for_change(count, min(remaining, POLL_SECONDS))

    def _execute(self, method: Method, table: Table, request: Request) -> Reply:
        """Executes a request and records it in the journal, or raises `LimiterTimeout` and changes nothing."""
        if self.journal is None:
            return method.run(table, request)
        with self.change_lock:
            journal = self.journal
            try:
                reply = method.run(table, request)
            except LimiterTimeout:
                raise
            except Exception:
                # A request may have changed the table before it failed; when redone, it does and fails again.
                self._record(journal, request)
                raise
            end = self._record(journal, request)
            if method.caches_reply:
                # Under the lock, so that a checkpoint has either both the change and its reply, or neither.
                self.replies.finish(request.client, request.number, reply)
        journal.wait_until_durable(end)
        return reply

    def _record(self, journal: Journal, request: Request) -> int:
        head = {"client": request.client, "id": request.number, "method": request.method, "table": request.table}
        return journal.append({**head, "args": request.args}, request.arrays)

    def _checkpoint(self, wait: bool) -> Reply:
        if self.save_checkpoint is None:
            raise WeftError("this server writes no checkpoints: start it with --checkpoint DIR")
        if not wait:
            raise WouldBlock
        return Reply({"path": self.save_checkpoint()})
