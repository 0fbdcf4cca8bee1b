"""The comparisons of `replay.py`: the measured operations, the libraries' variants of them, and weft's targets."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Options = dict[str, Any]

BATCH = 16
"""Sequences of frames in a batch: 9 MB."""

DEVICE_OPERATIONS = (
    ("insert", "uniform"),
    ("insert", "prioritised"),
    ("sample", "uniform"),
    ("sample", "prioritised"),
    ("update", "prioritised"),
)
"""The operations measured for tables on the device."""


@dataclass(frozen=True)
class Variant:
    """One way of one library to do an operation."""

    library: str
    description: str
    case: str
    """The name that the library's script has for the operation."""
    options: Options

    @property
    def name(self) -> str:
        return f"{self.library}, {self.description}"


@dataclass(frozen=True)
class Target:
    """The ratio that weft aims at: one variant of weft over a peer's best variant."""

    name: str
    ours: str
    """The description of weft's variant."""
    peer: str
    ratio: float
    peer_filter: str = ""
    """If given, only variants of the peer with this text in their description count."""


@dataclass(frozen=True)
class Comparison:
    """One operation, measured for several libraries."""

    title: str
    unit: str
    variants: tuple[Variant, ...]
    targets: tuple[Target, ...]
    lower_is_better: bool = False
    """The result is a size and not a rate, and every measurement runs in a new process."""


def weft(description: str, case: str, **options: Any) -> Variant:
    return Variant("weft", description, case, options)


def reverb_writers(max_clients: int) -> Iterator[Variant]:
    """Reverb's writers, each with its fastest settings."""
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
        if clients <= max_clients:
            description = f"{writer.removesuffix('s')} writer{', one column' * packed}, clients: {clients}"
            options = {"writer": writer, "packed": packed, "chunk": chunk, "clients": clients}
            yield Variant("reverb", description, "insert", options)


def reverb_datasets(sockets: bool) -> Iterator[Variant]:
    """Reverb's datasets, with the fastest of many settings."""
    for batch in (256, 4096):
        for packed, workers, flight in ((False, 4, 100), (True, 2, 100), (True, 4, 100), (True, 0, 1000)):
            parallelism = f"{workers} workers" if workers else "4 datasets in turn"
            description = f"batches of {batch}{', one column' * packed}, {parallelism}"
            options = {"batch": batch, "sockets": sockets, "packed": packed, "workers": workers, "flight": flight}
            yield Variant("reverb", description, "sample", options)


def reverb_sequences(kind: str, sockets: bool) -> Iterator[Variant]:
    """Reverb's dataset of sequences, with several chunk lengths."""
    for chunk in (10, 40, 80):
        for batch in (0, BATCH):
            description = f"{f'batches of {batch}' if batch else 'one by one'}, chunks of {chunk}"
            options = {"kind": kind, "batch": batch, "chunk": chunk, "sockets": sockets}
            yield Variant("reverb", description, "sequences", options)


COMPARISONS = {
    "insert": Comparison(
        "Inserting transitions, in process",
        "items per second",
        (
            *(
                Variant(
                    library, f"batches of {batch}, {'prioritised' if prioritised else 'uniform'}", "insert", options
                )
                for library in ("weft", "cpprb", "flashbax")
                for batch in (256, 4096)
                for prioritised in (False, True)
                for options in [{"batch": batch, "prioritised": prioritised}]
            ),
            *reverb_writers(max_clients=4),
        ),
        (
            *(
                Target(f"batched insert, {kind}", f"batches of 4096, {kind}", "reverb", 100)
                for kind in ("uniform", "prioritised")
            ),
            *(
                Target(
                    f"batched insert, {batch}, {kind}", f"batches of {batch}, {kind}", "cpprb", 1, f"{batch}, {kind}"
                )
                for kind in ("uniform", "prioritised")
                for batch in (256, 4096)
            ),
        ),
    ),
    "step": Comparison(
        "Writing transitions one step at a time, in process, one item per step",
        "items per second",
        (
            weft("one environment", "step", rows=1, chunk=1),
            weft("one environment, chunks of 100 steps", "step", rows=1, chunk=100),
            weft("8 environments", "step", rows=8, chunk=1),
            weft("8 environments, chunks of 100 steps", "step", rows=8, chunk=100),
            Variant("cpprb", "one environment", "step", {}),
            *reverb_writers(max_clients=1),
        ),
        (
            Target("per-step writer, one environment", "one environment", "reverb", 4),
            Target(
                "per-step writer, one environment, chunks of 100 steps",
                "one environment, chunks of 100 steps",
                "reverb",
                4,
            ),
            Target("per-step writer, 8 environments", "8 environments", "reverb", 4),
            Target(
                "per-step writer, 8 environments, chunks of 100 steps",
                "8 environments, chunks of 100 steps",
                "reverb",
                4,
            ),
        ),
    ),
    "sample": Comparison(
        "Sampling transitions uniformly, in process",
        "items per second",
        (
            *(
                Variant(library, f"batches of {batch}", "sample", {"batch": batch})
                for library in ("weft", "cpprb", "flashbax")
                for batch in (256, 4096)
            ),
            *reverb_datasets(sockets=False),
        ),
        (
            Target("sample in process, 256", "batches of 256", "reverb", 10, "of 256"),
            Target("sample in process, 4096", "batches of 4096", "reverb", 10, "of 4096"),
        ),
    ),
    "sockets": Comparison(
        "Sampling transitions uniformly, from another process",
        "items per second",
        (
            weft("sockets, batches of 256", "sample", batch=256, placement="sockets"),
            weft("sockets, batches of 4096", "sample", batch=4096, placement="sockets"),
            weft("shared memory, batches of 256", "sample", batch=256, placement="shared_memory"),
            weft("shared memory, batches of 4096", "sample", batch=4096, placement="shared_memory"),
            *reverb_datasets(sockets=True),
        ),
        (
            Target("sample over sockets, 256", "sockets, batches of 256", "reverb", 10, "of 256"),
            Target("sample over sockets, 4096", "sockets, batches of 4096", "reverb", 10, "of 4096"),
        ),
    ),
    "prioritised": Comparison(
        "Sampling transitions by priority, in process, with importance weights",
        "items per second",
        tuple(
            Variant(library, f"batches of {batch}", "sample", {"batch": batch, "prioritised": True})
            for library in ("weft", "cpprb", "flashbax")
            for batch in (32, 256, 4096)
        ),
        tuple(
            Target(f"prioritised sample, {batch}", f"batches of {batch}", "cpprb", 1, f"of {batch}")
            for batch in (32, 256, 4096)
        ),
    ),
    "update": Comparison(
        "Updating priorities",
        "priorities per second",
        (
            *(
                Variant(library, f"batches of {batch}", "update", {"batch": batch})
                for library in ("weft", "cpprb", "flashbax")
                for batch in (256, 4096)
            ),
            weft("sockets, batches of 4096", "update", batch=4096, placement="sockets"),
            *(
                Variant("reverb", f"{by}, batches of {batch}", "update", {"batch": batch, "by": by})
                for by in ("operation", "dictionary")
                for batch in (256, 4096)
            ),
            Variant("reverb", "sockets, operation, batches of 4096", "update", {"batch": 4096, "sockets": True}),
        ),
        (
            Target("priority updates, 256", "batches of 256", "reverb", 2, "of 256"),
            Target("priority updates, 4096", "batches of 4096", "reverb", 2, "of 4096"),
            Target("priority updates over sockets, 4096", "sockets, batches of 4096", "reverb", 2, "sockets"),
        ),
    ),
    "device": Comparison(
        "Tables on the device, in a compiled program, on a CPU",
        "items per second",
        tuple(
            Variant(library, f"{case}, batches of {batch}, {kind}", case, options | placement)
            for library, placement in (("weft", {"placement": "device"}), ("flashbax", {}))
            for case, kind in DEVICE_OPERATIONS
            for batch in (256, 4096)
            for options in [{"batch": batch} | ({"prioritised": kind == "prioritised"} if case != "update" else {})]
        ),
        tuple(
            Target(f"on the device, {case} of {batch}, {kind}", description, "flashbax", 1, description)
            for case, kind in DEVICE_OPERATIONS
            for batch in (256, 4096)
            for description in [f"{case}, batches of {batch}, {kind}"]
        ),
    ),
    "frames in process": Comparison(
        "Sampling sequences of frames, in process",
        "sequences per second",
        tuple(
            Variant(variant.library, f"{kind}, {variant.description}", variant.case, variant.options)
            for kind in ("compressible", "random")
            for variant in (
                weft(f"batches of {BATCH}", "sequences", kind=kind, batch=BATCH),
                *reverb_sequences(kind, sockets=False),
            )
        ),
        tuple(
            Target(f"frames in process, {kind}", f"{kind}, batches of {BATCH}", "reverb", 1.5, kind)
            for kind in ("compressible", "random")
        ),
    ),
    "frames between processes": Comparison(
        "Sampling sequences of frames, from another process",
        "sequences per second",
        tuple(
            Variant(variant.library, f"{kind}, {variant.description}", variant.case, variant.options)
            for kind in ("compressible", "random")
            for variant in (
                weft(
                    f"shared memory, batches of {BATCH}", "sequences", kind=kind, batch=BATCH, placement="shared_memory"
                ),
                weft(f"sockets, batches of {BATCH}", "sequences", kind=kind, batch=BATCH, placement="sockets"),
                *reverb_sequences(kind, sockets=True),
            )
        ),
        tuple(
            Target(
                f"frames over {transport}, {kind}", f"{kind}, {transport}, batches of {BATCH}", "reverb", bound, kind
            )
            for transport, kind, bound in (
                ("shared memory", "compressible", 1.5),
                ("shared memory", "random", 1.5),
                ("sockets", "compressible", 2),
                ("sockets", "random", 1),
            )
        ),
    ),
    "memory": Comparison(
        "Memory for a transition of 44 bytes, with its priority",
        "bytes per item",
        (
            weft("with priority", "memory"),
            Variant("cpprb", "with priority", "memory", {}),
            *(
                Variant(
                    "reverb", f"chunks of {chunk}, {'one column' if packed else 'separate columns'}", "memory", options
                )
                for chunk in (1, 100)
                for packed in (False, True)
                for options in [{"chunk": chunk, "packed": packed}]
            ),
        ),
        (
            Target("memory, separate columns", "with priority", "reverb", 0.1, "chunks of 1, separate columns"),
            Target("memory, one column", "with priority", "reverb", 0.1, "chunks of 1, one column"),
            Target("memory, any settings", "with priority", "reverb", 0.1),
        ),
        lower_is_better=True,
    ),
}
