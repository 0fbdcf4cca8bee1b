"""Compares weft's replay tables with those of Reverb, cpprb and flashbax.

    python benchmarks/replay.py                     # all comparisons: benchmarks/results/replay.{md,json}
    python benchmarks/replay.py --only sample       # one comparison; the results keep the others as they were

A comparison measures one operation in every library, in all variants that the library offers; a peer's fastest variant
counts. Each library runs in a process and a Python environment of its own. The environments are created when first
needed: Reverb and cpprb in `benchmarks/.peers-replay`, flashbax in `benchmarks/.peers-flashbax`. Every library fills
its tables before the first round, which is not counted. Each round then measures every variant in turn; all other
processes are stopped meanwhile, because some are busy even when they are not used. Ratios are computed within a round.
The report has their median over the rounds, with the minimum and the maximum.

A transition has 44 bytes: an observation of 4 numbers, action, reward, next observation, done. Tables hold a million
transitions; Reverb's hold 100,000, because each takes kilobytes, and fewer do not make it slower. A sequence has 80
frames of 84 x 84 bytes (564,480 bytes), and starts every 40 frames, so every frame is in two sequences.
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
from envs import install_peers
from replay_parts import COMPARISONS, Comparison, Variant
from summaries import ratio, spread, summary, thousands

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
TIMEOUT_SECONDS = 180.0
"""Seconds after which a library's process is killed if it has not answered."""

Result = dict[str, Any]
"""What one comparison measured, as stored in the results file."""


class LibraryProcess:
    """A process that measures one library (see `peers/replay_worker.py`)."""

    def __init__(self, library: str) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [PYTHONS[library], HERE / "peers" / f"{library}_replay.py"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log}
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        self.process = subprocess.Popen(command, text=True, env=environment, start_new_session=True, **pipes)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process and to the servers that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def measure(self, variant: Variant, seconds: float) -> dict[str, float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.send(signal.SIGCONT)
        request = {"case": variant.case, "options": variant.options, "seconds": seconds}
        print(json.dumps(request), file=self.process.stdin)
        self.process.stdin.flush()
        killer = threading.Timer(TIMEOUT_SECONDS, lambda: self.send(signal.SIGKILL))
        killer.start()
        answer = self.process.stdout.readline()
        killer.cancel()
        if not answer:
            self.log.seek(0)
            raise SystemExit(f"{variant.name} ended with {self.process.wait()}:\n{self.log.read()[-4000:]}")
        self.send(signal.SIGSTOP)
        return json.loads(answer)

    def __enter__(self) -> "LibraryProcess":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.send(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


def measure(comparison: Comparison, args: argparse.Namespace) -> Result:
    """Measures every variant in every round."""
    load = os.getloadavg()[0]
    rates: dict[str, list[float]] = {variant.name: [] for variant in comparison.variants}
    cpu_us: dict[str, list[float]] = {variant.name: [] for variant in comparison.variants}
    measurements = measure_in_new_processes if comparison.lower_is_better else measure_in_turn
    for variant, measured in measurements(comparison, args):
        rates[variant.name].append(measured["rate"])
        cpu_us[variant.name].append(measured["cpu_us"])
        print(f"{variant.name}: {measured['rate']:,.0f}", file=sys.stderr, flush=True)
    return {
        "rates": rates,
        "cpu_us": cpu_us,
        "load before": load,
        "settings": {"rounds": args.rounds, "seconds": args.seconds},
        "machine": machine(),
    }


def measure_in_turn(comparison: Comparison, args: argparse.Namespace) -> Iterator[tuple[Variant, dict[str, float]]]:
    """Measures with one process per library. An uncounted measurement first creates and fills the tables."""
    libraries = dict.fromkeys(variant.library for variant in comparison.variants)
    with ExitStack() as stack:
        processes = {library: stack.enter_context(LibraryProcess(library)) for library in libraries}
        for variant in comparison.variants:
            processes[variant.library].measure(variant, args.seconds / 5)
        for variant in comparison.variants * args.rounds:
            yield variant, processes[variant.library].measure(variant, args.seconds)


def measure_in_new_processes(
    comparison: Comparison, args: argparse.Namespace
) -> Iterator[tuple[Variant, dict[str, float]]]:
    """Measures with a new process per measurement."""
    for variant in comparison.variants * args.rounds:
        with LibraryProcess(variant.library) as process:
            yield variant, process.measure(variant, 0.0)


def target_rows(comparison: Comparison, result: Result) -> Iterator[str]:
    """Yields a table row per target, with the ratio of weft's variant to the peer's best variant."""
    rates, cpu_us = result["rates"], result["cpu_us"]
    lower = comparison.lower_is_better
    for target in comparison.targets:
        peers = [
            variant.name
            for variant in comparison.variants
            if variant.library == target.peer and target.peer_filter in variant.description
        ]
        best = (min if lower else max)(peers, key=lambda name: statistics.median(rates[name]))
        ours = f"weft, {target.ours}"
        measured = ratio(rates[ours], rates[best])
        met = measured["median"] <= target.ratio if lower else measured["median"] >= target.ratio
        bound = f"at {'most' if lower else 'least'} {target.ratio:g}x"
        cpu = "" if lower else spread(ratio(cpu_us[best], cpu_us[ours]))
        yield f"| {target.name} | {best} | {bound} | {spread(measured)} | {'met' if met else 'missed'} | {cpu} |"


def machine() -> str:
    """Returns the processor's architecture and the versions of Python and NumPy."""
    cores = f"{len(os.sched_getaffinity(0))} cores"
    return f"{platform.machine()}, {cores}, python {platform.python_version()}, numpy {np.__version__}"


def peer_versions() -> str:
    """Returns the peers' versions that the requirements files pin."""
    lines = [line for file in ("replay", "flashbax") for line in requirements(file).read_text().splitlines()]
    return ", ".join(line.replace("==", " ") for line in lines if line.partition("==")[0] in VERSIONS)


def requirements(name: str) -> Path:
    return HERE / "peers" / f"{name}-requirements.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=COMPARISONS, help="one comparison")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.6, help="duration of one measurement")
    args = parser.parse_args()
    install_peers(PEERS, requirements("replay"))
    install_peers(FLASHBAX, requirements("flashbax"))
    file = RESULTS / "replay.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    RESULTS.mkdir(exist_ok=True)
    for name, comparison in COMPARISONS.items():
        if args.only in (None, name):
            results[name] = measure(comparison, args)
            # Results are saved after every comparison, because all of them take long.
            file.write_text(json.dumps(results, indent=2) + "\n")
    text = "\n".join(report(results)) + "\n"
    sys.stdout.write(text)
    (RESULTS / "replay.md").write_text(text)


def report(results: dict[str, Result]) -> Iterator[str]:
    """Yields the lines of the report: a table of all targets, then a table of rates for every comparison."""
    yield "<!-- Written by benchmarks/replay.py. -->"
    yield f"weft.replay compared with {peer_versions()}. Medians (minimum to maximum)."
    yield "Processor time is summed over all processes of a library. Other load on the machine affects it less than the"
    yield "rates; single-threaded libraries' rates are affected most."
    yield from (
        "",
        "| comparison | best variant of the peer | target | rate, weft / peer | | processor time, peer / weft |",
        "|---|---|---|---|---|---|",
    )
    # A comparison to which variants were added since it was measured is left out.
    complete = {
        name: comparison
        for name, comparison in COMPARISONS.items()
        if name in results and {variant.name for variant in comparison.variants} <= results[name]["rates"].keys()
    }
    for name, comparison in complete.items():
        yield from target_rows(comparison, results[name])
    for name, comparison in complete.items():
        yield from rate_table(comparison, results[name])


def rate_table(comparison: Comparison, result: Result) -> Iterator[str]:
    settings, lower = result["settings"], comparison.lower_is_better
    duration = "" if lower else f" of {settings['seconds']:g} s"
    yield from ("", f"{comparison.title}: {settings['rounds']} rounds{duration}, on {result['machine']}.")
    yield from (f"Load average at the start: {result['load before']:.1f}.", "")
    cpu_column = "" if lower else " processor time, us per item |"
    yield from (f"| variant | {comparison.unit} |{cpu_column}", "|---|---|" + ("" if lower else "---|"))
    for variant in comparison.variants:
        cpu = "" if lower else f" {spread(summary(result['cpu_us'][variant.name]))} |"
        yield f"| {variant.name} | {thousands(summary(result['rates'][variant.name]))} |{cpu}"


if __name__ == "__main__":
    main()
