"""Requests carried out on tables: each change once, in an order that a log can repeat.

A request is known by its client and its number. The answers to the last changes of every client are remembered, so a
client that does not know whether a change was made asks again and gets the first answer. If it asks while the first
request still waits for a limiter, it waits with it.

With a log, changes are carried out one at a time and written down in that order before they are answered; samples too,
since they draw from the table's random numbers and count. To repeat the log after a checkpoint therefore leads to the
very state that was lost.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from weft.errors import WeftError, unknown
from weft.replay.blocking import LimiterTimeout
from weft.replay.server import wire
from weft.replay.server.calls import CALLS, Call, Reply, Request, bytes_of_sample
from weft.replay.server.journal import Journal
from weft.replay.table import Table

ANSWERS = 64
"""Answers that are remembered for each client: more than it has changes under way at once."""
CLIENTS = 1024
LOOK = 0.25
"""Seconds after which a call that waits looks by itself whether it may go on, or its client has gone."""


class Blocked(Exception):
    """The limiter does not allow the call now; it may later."""


class Answer:
    """What became of one request: nothing yet, or a reply."""

    def __init__(self, reply: Reply | None = None) -> None:
        self.reply = reply
        self.over = threading.Event()
        """Nobody works on it any more; without a reply, somebody may try again."""


class Answers:
    """The answers to the last changes of every client."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clients: OrderedDict[str, OrderedDict[int, Answer]] = OrderedDict()

    def claim(self, client: str, number: int) -> tuple[Answer, bool]:
        """The answer to a request, and whether it is the caller who must find it."""
        with self.lock:
            answers = self.clients.setdefault(client, OrderedDict())
            self.clients.move_to_end(client)
            if number in answers:
                return answers[number], False
            answers[number] = Answer()
            _trim(answers, ANSWERS)
            _trim(self.clients, CLIENTS)
            return answers[number], True

    def settle(self, client: str, number: int, reply: Reply | None) -> None:
        """The request was answered; with None, it was given up and may be tried again."""
        with self.lock:
            answers = self.clients.setdefault(client, OrderedDict())
            answer = answers.setdefault(number, Answer())
            if reply is None:
                del answers[number]
            answer.reply = reply
            answer.over.set()

    def known(self) -> list[tuple[str, int, Reply]]:
        """All answers, for a checkpoint."""
        with self.lock:
            each = ((client, number, a.reply) for client, some in self.clients.items() for number, a in some.items())
            return [(client, number, reply) for client, number, reply in each if reply is not None]


class Changes:
    """How often a table has changed; whoever waits for a limiter waits for the next time."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.count = 0

    def one_more(self) -> None:
        with self.condition:
            self.count += 1
            self.condition.notify_all()

    def wait_past(self, count: int, timeout: float) -> None:
        with self.condition:
            self.condition.wait_for(lambda: self.count != count, timeout)


class Service:
    """Tables by name, and what is asked of them."""

    def __init__(self, tables: Iterable[Table], *, limits: wire.Limits | None = None) -> None:
        self.tables = {table.name: table for table in tables}
        self.limits = limits or wire.Limits()
        self.answers = Answers()
        self.journal: Journal | None = None
        self.order = threading.RLock()
        """Held for a change and its record, so that the log has them in the order they happened."""
        self.save: Callable[[], str] | None = None
        """Writes a checkpoint and says where."""
        self.changes = {name: Changes() for name in self.tables}

    def describe(self) -> dict[str, Any]:
        """What a client should know of the tables: columns and lengths, and which have a store in common."""
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

    def call(self, request: Request, *, wait: bool = True, alive: Callable[[], bool] = lambda: True) -> Reply:
        """Carry out a request; `Blocked` if it would have to wait and may not, or nobody is `alive` to wait for it."""
        if request.method in ("ping", "checkpoint"):
            return self._checkpoint(wait) if request.method == "checkpoint" else Reply()
        call, table = self._find(request)
        if not call.changes:
            return call.run(table, request)
        deadline = None if request.timeout is None else time.monotonic() + request.timeout
        if not call.remembered:
            return self._until_allowed(call, table, request, deadline, wait, alive)
        while True:
            answer, mine = self.answers.claim(request.client, request.number)
            if mine:
                return self._find_answer(call, table, request, deadline, wait, alive)
            if not wait and not answer.over.is_set():
                raise Blocked
            answer.over.wait()
            if answer.reply is not None:
                if (journal := self.journal) is not None:
                    journal.settle(journal.written)
                return answer.reply

    def bytes_of_reply(self, request: Request) -> int:
        """About how large the arrays of the reply will be; 0 where that is little, or there will be an error."""
        table, n = self.tables.get(request.table), request.args.get("n")
        if request.method != "sample" or table is None or type(n) is not int:
            return 0
        size = bytes_of_sample(table, n)
        return size if size <= self.limits.frame else 0

    def repeat(self, message: wire.Message) -> None:
        """Carry out what a log says was done."""
        request = Request.of(message.head["client"], message)
        call, table = self._find(request)
        try:
            reply = call.run(table, request)
        except Exception:  # as it was then
            return
        if call.remembered:
            self.answers.settle(request.client, request.number, reply)

    def _find(self, request: Request) -> tuple[Call, Table]:
        if request.method not in CALLS:
            raise unknown("method", request.method, CALLS)
        if request.table not in self.tables:
            raise unknown("table", request.table, self.tables)
        call, table = CALLS[request.method], self.tables[request.table]
        n = request.args.get("n")
        if type(n) is int and bytes_of_sample(table, n) > self.limits.frame:
            raise WeftError(
                f"a sample of {n:,} items is larger than the {self.limits.frame:,} bytes of a frame: ask for less"
            )
        return call, table

    def _find_answer(self, call: Call, table: Table, request: Request, *rest: Any) -> Reply:
        reply = None
        try:
            reply = self._until_allowed(call, table, request, *rest)
            return reply
        finally:
            if reply is None or self.journal is None:
                self.answers.settle(request.client, request.number, reply)

    def _until_allowed(
        self,
        call: Call,
        table: Table,
        request: Request,
        deadline: float | None,
        wait: bool,
        alive: Callable[[], bool],
    ) -> Reply:
        changes = self.changes[table.name]
        while True:
            count = changes.count
            if not alive():
                raise Blocked
            try:
                reply = self._carry_out(call, table, request)
                changes.one_more()
                return reply
            except LimiterTimeout as error:
                if not call.waits:
                    raise
                left = LOOK if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise LimiterTimeout(error.call, error.reason, f"{request.timeout:g}") from None
                if not wait:
                    raise Blocked from None
            changes.wait_past(count, min(left, LOOK))

    def _carry_out(self, call: Call, table: Table, request: Request) -> Reply:
        """Once, or not at all if it is not allowed; in the log before it is answered."""
        if self.journal is None:
            return call.run(table, request)
        with self.order:
            journal = self.journal
            try:
                reply = call.run(table, request)
            except LimiterTimeout:
                raise
            except Exception:
                self._write(journal, request)  # some calls have an effect before they fail, and will again
                raise
            end = self._write(journal, request)
            if call.remembered:
                # With the change, so that no checkpoint has one without the other.
                self.answers.settle(request.client, request.number, reply)
        journal.settle(end)
        return reply

    def _write(self, journal: Journal, request: Request) -> int:
        head = {"client": request.client, "id": request.number, "method": request.method, "table": request.table}
        return journal.write({**head, "args": request.args}, request.arrays)

    def _checkpoint(self, wait: bool) -> Reply:
        if self.save is None:
            raise WeftError("this server keeps no checkpoints: start it with --checkpoint DIR")
        if not wait:
            raise Blocked
        return Reply({"path": self.save()})


def _trim(kept: OrderedDict[Any, Any], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
