"""What `replay.py` measures: every operation, the contenders' ways of doing it, and what is asked of weft's."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Options = dict[str, Any]

BATCH = 16
"""Sequences of frames at once: 9 MB."""


COMPILED = (
    ("insert", "uniform"),
    ("insert", "prioritised"),
    ("sample", "uniform"),
    ("sample", "prioritised"),
    ("update", "prioritised"),
)
"""What is measured of tables on the device."""


@dataclass(frozen=True)
class Way:
    """One contender's way of doing what a part is about."""

    who: str
    how: str
    case: str
    options: Options

    @property
    def name(self) -> str:
        return f"{self.who}, {self.how}"


@dataclass(frozen=True)
class Bar:
    """What is asked: weft in one way over a peer in its best way, of those whose name has `among` in it."""

    what: str
    ours: str
    peer: str
    asked: float
    among: str = ""


@dataclass(frozen=True)
class Part:
    title: str
    unit: str
    ways: tuple[Way, ...]
    bars: tuple[Bar, ...]
    less: bool = False
    """Less is better: what is measured is not a rate but a size, each time in a new process."""


def weft(how: str, case: str, **options: Any) -> Way:
    return Way("weft", how, case, options)


def written(most: int) -> Iterator[Way]:
    """Reverb's writers, each with what it does best with."""
    for writer, packed, chunk, clients in (
        ("trajectory", False, 10, 1),
        ("structured", False, 10, 1),
        ("structured", False, 10, 2),
        ("structured", True, 10, 1),
        ("structured", True, 10, 2),
        ("structured", True, 10, 4),
        ("steps", False, 100, 1),
        ("steps", False, 100, 2),
        ("steps", True, 100, 1),
        ("steps", True, 100, 2),
    ):
        if clients <= most:
            how = f"{writer.removesuffix('s')} writer{', one column' * packed}, clients: {clients}"
            options = {"writer": writer, "packed": packed, "chunk": chunk, "clients": clients}
            yield Way("reverb", how, "insert", options)


def taken(sockets: bool) -> Iterator[Way]:
    """Reverb's datasets, with the settings that were best among many."""
    for batch in (256, 4096):
        for packed, workers, flight in ((False, 4, 100), (True, 2, 100), (True, 4, 100), (True, 0, 1000)):
            by = f"{workers} workers" if workers else "4 datasets in turn"
            how = f"batches of {batch}{', one column' * packed}, {by}"
            options = {"batch": batch, "sockets": sockets, "packed": packed, "workers": workers, "flight": flight}
            yield Way("reverb", how, "sample", options)


def viewed(kind: str, sockets: bool) -> Iterator[Way]:
    for chunk in (10, 40, 80):
        for batch in (0, BATCH):
            how = f"{f'batches of {batch}' if batch else 'one by one'}, chunks of {chunk}"
            options = {"kind": kind, "batch": batch, "chunk": chunk, "sockets": sockets}
            yield Way("reverb", how, "sequences", options)


PARTS = {
    "insert": Part(
        "Inserting transitions, in process",
        "items per second",
        (
            *(
                Way(who, f"batches of {batch}, {'prioritised' if prioritised else 'uniform'}", "insert", options)
                for who in ("weft", "cpprb", "flashbax")
                for batch in (256, 4096)
                for prioritised in (False, True)
                for options in [{"batch": batch, "prioritised": prioritised}]
            ),
            *written(most=4),
        ),
        (
            *(
                Bar(f"batched insert, {kind}", f"batches of 4096, {kind}", "reverb", 100)
                for kind in ("uniform", "prioritised")
            ),
            *(
                Bar(f"batched insert, {batch}, {kind}", f"batches of {batch}, {kind}", "cpprb", 1, f"{batch}, {kind}")
                for kind in ("uniform", "prioritised")
                for batch in (256, 4096)
            ),
        ),
    ),
    "step": Part(
        "Writing transitions one step at a time, in process, one item for each",
        "items per second",
        (
            weft("one environment", "step", rows=1, chunk=1),
            weft("one environment, 100 steps at once", "step", rows=1, chunk=100),
            weft("8 environments", "step", rows=8, chunk=1),
            weft("8 environments, 100 steps at once", "step", rows=8, chunk=100),
            Way("cpprb", "one environment", "step", {}),
            *written(most=1),
        ),
        (
            Bar("per-step writer, one environment", "one environment", "reverb", 4),
            Bar("per-step writer, sent by the hundred", "one environment, 100 steps at once", "reverb", 4),
            Bar("per-step writer, 8 environments", "8 environments", "reverb", 4),
            Bar("per-step writer, 8 environments, by the hundred", "8 environments, 100 steps at once", "reverb", 4),
        ),
    ),
    "sample": Part(
        "Sampling transitions uniformly, in process",
        "items per second",
        (
            *(
                Way(who, f"batches of {batch}", "sample", {"batch": batch})
                for who in ("weft", "cpprb", "flashbax")
                for batch in (256, 4096)
            ),
            *taken(sockets=False),
        ),
        (
            Bar("sample in process, 256", "batches of 256", "reverb", 10, "of 256"),
            Bar("sample in process, 4096", "batches of 4096", "reverb", 10, "of 4096"),
        ),
    ),
    "sockets": Part(
        "Sampling transitions uniformly, from another process",
        "items per second",
        (
            weft("sockets, batches of 256", "sample", batch=256, where="sockets"),
            weft("sockets, batches of 4096", "sample", batch=4096, where="sockets"),
            weft("shared memory, batches of 256", "sample", batch=256, where="host"),
            weft("shared memory, batches of 4096", "sample", batch=4096, where="host"),
            *taken(sockets=True),
        ),
        (
            Bar("sample over sockets, 256", "sockets, batches of 256", "reverb", 10, "of 256"),
            Bar("sample over sockets, 4096", "sockets, batches of 4096", "reverb", 10, "of 4096"),
        ),
    ),
    "prioritised": Part(
        "Sampling transitions by priority, in process, with importance weights",
        "items per second",
        tuple(
            Way(who, f"batches of {batch}", "sample", {"batch": batch, "prioritised": True})
            for who in ("weft", "cpprb", "flashbax")
            for batch in (32, 256, 4096)
        ),
        tuple(
            Bar(f"prioritised sample, {batch}", f"batches of {batch}", "cpprb", 1, f"of {batch}")
            for batch in (32, 256, 4096)
        ),
    ),
    "update": Part(
        "Changing priorities",
        "priorities per second",
        (
            *(
                Way(who, f"batches of {batch}", "update", {"batch": batch})
                for who in ("weft", "cpprb", "flashbax")
                for batch in (256, 4096)
            ),
            weft("sockets, batches of 4096", "update", batch=4096, where="sockets"),
            *(
                Way("reverb", f"{by}, batches of {batch}", "update", {"batch": batch, "by": by})
                for by in ("operation", "dictionary")
                for batch in (256, 4096)
            ),
            Way("reverb", "sockets, operation, batches of 4096", "update", {"batch": 4096, "sockets": True}),
        ),
        (
            Bar("priority updates, 256", "batches of 256", "reverb", 2, "of 256"),
            Bar("priority updates, 4096", "batches of 4096", "reverb", 2, "of 4096"),
            Bar("priority updates over sockets, 4096", "sockets, batches of 4096", "reverb", 2, "sockets"),
        ),
    ),
    "device": Part(
        "A table of arrays in a compiled program, on the processor",
        "items per second",
        tuple(
            Way(who, f"{case}, batches of {batch}, {kind}", case, options | where)
            for who, where in (("weft", {"where": "device"}), ("flashbax", {}))
            for case, kind in COMPILED
            for batch in (256, 4096)
            for options in [{"batch": batch} | ({"prioritised": kind == "prioritised"} if case != "update" else {})]
        ),
        tuple(
            Bar(f"on the device, {case} of {batch}, {kind}", how, "flashbax", 1, how)
            for case, kind in COMPILED
            for batch in (256, 4096)
            for how in [f"{case}, batches of {batch}, {kind}"]
        ),
    ),
    "frames in process": Part(
        "Sampling sequences of frames, in process",
        "sequences per second",
        tuple(
            Way(way.who, f"{kind}, {way.how}", way.case, way.options)
            for kind in ("compressible", "random")
            for way in (
                weft(f"batches of {BATCH}", "sequences", kind=kind, batch=BATCH),
                *viewed(kind, sockets=False),
            )
        ),
        tuple(
            Bar(f"frames in process, {kind}", f"{kind}, batches of {BATCH}", "reverb", 1.5, kind)
            for kind in ("compressible", "random")
        ),
    ),
    "frames between processes": Part(
        "Sampling sequences of frames, from another process",
        "sequences per second",
        tuple(
            Way(way.who, f"{kind}, {way.how}", way.case, way.options)
            for kind in ("compressible", "random")
            for way in (
                weft(f"shared memory, batches of {BATCH}", "sequences", kind=kind, batch=BATCH, where="host"),
                weft(f"sockets, batches of {BATCH}", "sequences", kind=kind, batch=BATCH, where="sockets"),
                *viewed(kind, sockets=True),
            )
        ),
        tuple(
            Bar(f"frames through {through}, {kind}", f"{kind}, {through}, batches of {BATCH}", "reverb", asked, kind)
            for through, kind, asked in (
                ("shared memory", "compressible", 1.5),
                ("shared memory", "random", 1.5),
                ("sockets", "compressible", 2),
                ("sockets", "random", 1),
            )
        ),
    ),
    "memory": Part(
        "Memory for a transition of 44 bytes, with its priority",
        "bytes per item",
        (
            weft("all in", "memory"),
            Way("cpprb", "all in", "memory", {}),
            *(
                Way("reverb", f"chunks of {chunk}, {'one column' if packed else 'columns apart'}", "memory", options)
                for chunk in (1, 100)
                for packed in (False, True)
                for options in [{"chunk": chunk, "packed": packed}]
            ),
        ),
        (
            Bar("memory, columns apart", "all in", "reverb", 0.1, "chunks of 1, columns apart"),
            Bar("memory, one column", "all in", "reverb", 0.1, "chunks of 1, one column"),
            Bar("memory, at its least", "all in", "reverb", 0.1),
        ),
        less=True,
    ),
}
