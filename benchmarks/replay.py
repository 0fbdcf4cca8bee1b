"""Replay tables beside Reverb's, cpprb's and flashbax's, in one run.

    python benchmarks/replay.py                     # everything: benchmarks/results/replay.{md,json}
    python benchmarks/replay.py --only sample       # one part; the results keep what they say of the others

A part is one operation, done by every contender in all the ways that it offers; a peer counts with the way that was
fastest. Contenders run in processes of their own, and in environments of their own, which are made when first needed:
Reverb and cpprb in `benchmarks/.peers-replay`, flashbax in `benchmarks/.peers-flashbax`. Each fills its tables before
the first round, which is not counted; then every way is measured in every round, in turn, while the other contenders
are stopped: some are never idle. A ratio is taken within a round, and its median over the rounds is reported with the
least and the most.

Transitions are of 44 bytes: an observation of 4 numbers, action, reward, next observation, done. Tables hold a million
of them, Reverb's 100,000: it takes kilobytes for each, and is none the slower for having fewer. Frames are sequences of
80 frames of 84 x 84 bytes (564,480 bytes), one every 40 frames, so that each frame is in two.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from envs import install_peers, ratio, spread, summary, thousands
from replay_parts import PARTS, Part, Way

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PEERS, FLASHBAX = HERE / ".peers-replay", HERE / ".peers-flashbax"
PYTHONS = {
    "weft": Path(sys.executable),
    "reverb": PEERS / "bin" / "python",
    "cpprb": PEERS / "bin" / "python",
    "flashbax": FLASHBAX / "bin" / "python",
}
VERSIONS = ("dm-reverb", "tensorflow-cpu", "cpprb", "flashbax")
PATIENCE = 180.0
"""Seconds after which a contender that has not answered is given up."""

Found = dict[str, Any]


class Contender:
    """A process that measures what it is told to."""

    def __init__(self, who: str) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [PYTHONS[who], HERE / "peers" / f"{who}_replay.py"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log}
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        self.process = subprocess.Popen(command, text=True, env=environment, start_new_session=True, **pipes)

    def send(self, number: signal.Signals) -> None:
        """To the process and to its servers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def measure(self, way: Way, seconds: float) -> dict[str, float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.send(signal.SIGCONT)
        print(json.dumps({"case": way.case, "options": way.options, "seconds": seconds}), file=self.process.stdin)
        self.process.stdin.flush()
        late = threading.Timer(PATIENCE, lambda: self.send(signal.SIGKILL))
        late.start()
        answer = self.process.stdout.readline()
        late.cancel()
        if not answer:
            self.log.seek(0)
            raise SystemExit(f"{way.name} ended with {self.process.wait()}:\n{self.log.read()[-4000:]}")
        self.send(signal.SIGSTOP)
        return json.loads(answer)

    def __enter__(self) -> "Contender":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.send(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


def measure(part: Part, args: argparse.Namespace) -> Found:
    """Every way's rates, round after round."""
    load = os.getloadavg()[0]
    rates: dict[str, list[float]] = {way.name: [] for way in part.ways}
    cpu_us: dict[str, list[float]] = {way.name: [] for way in part.ways}
    for way, found in (afresh if part.less else by_turns)(part, args):
        rates[way.name].append(found["rate"])
        cpu_us[way.name].append(found["cpu_us"])
        print(f"{way.name}: {found['rate']:,.0f}", file=sys.stderr, flush=True)
    return {
        "rates": rates,
        "cpu_us": cpu_us,
        "load before": load,
        "settings": {"rounds": args.rounds, "seconds": args.seconds},
        "machine": machine(),
    }


def by_turns(part: Part, args: argparse.Namespace) -> Iterator[tuple[Way, dict[str, float]]]:
    """In one process for each contender; what makes and fills the tables comes first and is not counted."""
    with ExitStack() as stack:
        running = {who: stack.enter_context(Contender(who)) for who in dict.fromkeys(way.who for way in part.ways)}
        for way in part.ways:
            running[way.who].measure(way, args.seconds / 5)
        for way in part.ways * args.rounds:
            yield way, running[way.who].measure(way, args.seconds)


def afresh(part: Part, args: argparse.Namespace) -> Iterator[tuple[Way, dict[str, float]]]:
    """In a new process each time."""
    for way in part.ways * args.rounds:
        with Contender(way.who) as contender:
            yield way, contender.measure(way, 0.0)


def judge(part: Part, found: Found) -> Iterator[str]:
    """A line for each bar: the peer's way that it was held against, and the ratios."""
    rates, cpu_us = found["rates"], found["cpu_us"]
    for bar in part.bars:
        theirs = [way.name for way in part.ways if way.who == bar.peer and bar.among in way.how]
        best = (min if part.less else max)(theirs, key=lambda name: statistics.median(rates[name]))
        ours = f"weft, {bar.ours}"
        measured = ratio(rates[ours], rates[best])
        met = measured["median"] <= bar.asked if part.less else measured["median"] >= bar.asked
        asked = f"at {'most' if part.less else 'least'} {bar.asked:g}x"
        cpu = "" if part.less else spread(ratio(cpu_us[best], cpu_us[ours]))
        yield f"| {bar.what} | {best} | {asked} | {spread(measured)} | {'met' if met else 'missed'} | {cpu} |"


def machine() -> str:
    """What this runs on and with."""
    cores = f"{len(os.sched_getaffinity(0))} cores"
    return f"{platform.machine()}, {cores}, python {platform.python_version()}, numpy {np.__version__}"


def pinned() -> str:
    """The peers' versions, as their environments were told."""
    lines = [line for file in ("replay", "flashbax") for line in requirements(file).read_text().splitlines()]
    return ", ".join(line.replace("==", " ") for line in lines if line.partition("==")[0] in VERSIONS)


def requirements(name: str) -> Path:
    return HERE / "peers" / f"{name}-requirements.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.6, help="of one measurement")
    args = parser.parse_args()
    install_peers(PEERS, requirements("replay"))
    install_peers(FLASHBAX, requirements("flashbax"))
    kept = RESULTS / "replay.json"
    record = json.loads(kept.read_text()) if kept.exists() else {}
    RESULTS.mkdir(exist_ok=True)
    for name, part in PARTS.items():
        if args.only in (None, name):
            # Each part is kept as soon as it is there: the whole takes a while.
            record[name] = measure(part, args)
            kept.write_text(json.dumps(record, indent=2) + "\n")
    text = "\n".join(table(record)) + "\n"
    sys.stdout.write(text)
    (RESULTS / "replay.md").write_text(text)


def table(record: dict[str, Found]) -> Iterator[str]:
    yield "<!-- Written by benchmarks/replay.py. -->"
    yield f"weft.replay beside {pinned()}. Medians (least to most)."
    yield "Processor time is that of all processes which take part: other load on the machine changes it less than it"
    yield "changes rates, and most of all those of whoever uses one thread."
    yield from (
        "",
        "| what | beside | asked | rate, weft / peer | | processor time, peer / weft |",
        "|---|---|---|---|---|---|",
    )
    # What was measured before something was added to its part is left out until it is measured again.
    known = {name: {way.name for way in part.ways} <= found_rates(record, name) for name, part in PARTS.items()}
    for show in (judge, part_table):
        for name, part in PARTS.items():
            if known[name]:
                yield from show(part, record[name])


def found_rates(record: dict[str, Found], name: str) -> set[str]:
    return set(record[name]["rates"]) if name in record else set()


def part_table(part: Part, found: Found) -> Iterator[str]:
    settings = found["settings"]
    each = "" if part.less else f" of {settings['seconds']:g} s"
    yield from ("", f"{part.title}: {settings['rounds']} rounds{each}, on {found['machine']};")
    yield from (f"before it began {found['load before']:.1f} others wanted a core.", "")
    cpu = "" if part.less else " processor time, us per item |"
    yield from (f"| contender | {part.unit} |{cpu}", "|---|---|" + "---|" * bool(cpu))
    for way in part.ways:
        if way.name in found["rates"]:
            spent = f" {spread(summary(found['cpu_us'][way.name]))} |" if cpu else ""
            yield f"| {way.name} | {thousands(summary(found['rates'][way.name]))} |{spent}"


if __name__ == "__main__":
    main()
