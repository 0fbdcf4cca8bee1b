"""Compares asynchronous layouts with their synchronous forms: what asynchrony gains, and what it costs.

    python benchmarks/async.py                      # all parts: benchmarks/results/async.{md,json}
    python benchmarks/async.py --only uneven        # one part; the results keep the others as they were

`uneven` trains on environments whose steps usually take 1 ms and sometimes 50 ms: a synchronous layout waits for the
slowest one. `even` trains with acting and learning that take equally long, on one core each: a synchronous layout
alternates them, an asynchronous one overlaps them. `operations` measures the single operations of streams and lanes.
`peers` compares IMPALA on Gymnasium's CartPole with RLlib's, which is installed into `benchmarks/.peers` when first
needed.

Each part runs in its own process. Each of its rounds measures every contender in turn. Ratios are computed within a
round. The report has their median over the rounds, with the minimum and the maximum. Start-up and compilation are not
counted. The report also has processor time, because other load on the machine affects it less than the rates.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
from envs import PEERS, install_peers
from summaries import ratio, spread, summary, thousands
from uneven import longest_seconds, mean_seconds

from weft.algorithm import Algorithm
from weft.algos.impala import IMPALA
from weft.envs.world import World
from weft.runtime.channel import RunControl, Stopwatch, Stream
from weft.runtime.driver import Plan
from weft.runtime.lanes import Admission
from weft.runtime.local import LocalEngine

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"

# Each program runs on one thread. Otherwise XLA, which has one thread pool for all roles, would run the program of one
# role on the cores of roles that wait.
ONE_THREAD_PER_PROGRAM = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false --xla_cpu_enable_concurrency_optimized_scheduler=false"
}

LANES = 8
MANY_LANES = 64
# By name: the synchronous layout, the asynchronous layout, and the horizon. Synchronous actors wait for each other once
# per iteration; synchronous environments with central inference wait for each other at every step.
UNEVEN = {
    "actors, 5 steps": ("actors:actors=8", "impala:actors=8,take=1", 5),
    "actors, 20 steps": ("actors:actors=8", "impala:actors=8,take=1", 20),
    "central inference, 20 steps": ("seed:envs=8", "seed:envs=8,take=1", 20),
    "central inference, 64 steps": ("seed:envs=8", "seed:envs=8,take=1", 64),
}
# Chosen so that acting and learning take about the same time. Both times are measured.
EVEN: dict[str, Any] = {
    "num_envs": 64,
    "horizon": 128,
    "hidden": (64,),
    "shared": True,
}
EVEN_ENV = "gymnax:Breakout-MinAtar"
EVEN_LAYOUTS = {"synchronous": "actors:actors=1", "asynchronous": "impala:actors=1"}

PEER_SETTINGS: dict[str, Any] = {
    "env": "CartPole-v1",
    "envs": 8,
    "horizon": 64,
    "hidden": [64, 64],
    "lr": 0.001,
    "gamma": 0.99,
    "entropy_weight": 0.01,
    "value_weight": 0.5,
    "max_grad_norm": 0.5,
}
WEFT = "weft, impala:actors=2"
RLLIB = {
    "rllib, 2 runners, 1 learner process": ("--runners", "2", "--learners", "1"),
    "rllib, 2 runners, the driver learns": ("--runners", "2", "--learners", "0"),
}

Executable = Callable[..., Any]


@dataclass
class Measurement:
    """The speed, the processor time and the lag of one run."""

    steps_per_s: float
    cpu_us_per_step: float
    """Processor time of the whole process."""
    lag: float
    """The mean over the run, in versions."""
    lag_max: float


@dataclass
class Training:
    """An algorithm with a layout, compiled once. Each run continues from the state of the previous one."""

    algo: Algorithm
    env: World | str
    layout: str
    seconds: dict[str, float] = field(default_factory=dict)
    """By role, the time in compiled code during the last run."""

    def __post_init__(self) -> None:
        plan = Plan.of(self.algo, self.env, self.layout)
        projection = plan.project()
        self.steps_per_iteration = projection.trace.steps_per_iteration
        self.engine, self.state = LocalEngine(projection), plan.init(0)
        self.engine.executables = {
            (role, index): {compute: self.timed(executable, role) for compute, executable in executables.items()}
            for (role, index), executables in self.engine.executables.items()
        }

    def timed(self, executable: Executable, role: str) -> Executable:
        def call(*inputs: Any) -> Any:
            started = time.perf_counter()
            results = executable(*inputs)
            self.seconds[role] = self.seconds.get(role, 0.0) + time.perf_counter() - started
            return results

        return call

    def run(self, iterations: int) -> Measurement:
        """Trains for `iterations`. The rate and the lag leave out the first fifth, in which the pipeline fills."""
        times: list[float] = []
        lags: list[dict[str, float]] = []

        def record(metrics: dict[str, Any], state: Any) -> None:
            times.append(time.perf_counter())
            lags.append({name: _mean(metrics[name]) for name in ("lag", "lag_max") if name in metrics})

        self.seconds.clear()
        cpu = time.process_time()
        self.state = jax.block_until_ready(self.engine.run(self.state, iterations, record))
        cpu = time.process_time() - cpu
        first = len(times) // 5
        rate = (len(times) - 1 - first) * self.steps_per_iteration / (times[-1] - times[first])
        # Synchronous layouts report no lag.
        counted = [lag for lag in lags[first:] if lag] or [{"lag": 0.0, "lag_max": 0.0}]
        return Measurement(
            rate,
            1e6 * cpu / (iterations * self.steps_per_iteration),
            statistics.fmean(lag["lag"] for lag in counted),
            max(lag["lag_max"] for lag in counted),
        )


def uneven(args: argparse.Namespace) -> dict[str, Any]:
    """Measures synchronous and asynchronous layouts with environments whose steps take uneven time."""
    world = World.of("uneven:Uneven", {"vector": "inprocess"})
    trainings: dict[tuple[str, str], tuple[Training, int]] = {}
    for name, (*layouts, horizon) in UNEVEN.items():
        for layout in layouts:
            training = Training(IMPALA(num_envs=LANES, horizon=horizon), world, layout)
            trainings[name, layout] = training, max(8, round(args.seconds / ideal_seconds(layout, horizon)))
    measurements: dict[tuple[str, str], list[Measurement]] = {key: [] for key in trainings}
    for round_ in range(args.rounds + 1):
        for (name, layout), (training, iterations) in trainings.items():
            measurement = training.run(iterations if round_ else 4)
            if round_:
                measurements[name, layout].append(measurement)
                log(f"{round_} {layout}, {name}: {measurement.steps_per_s:,.0f} steps/s")
    return {name: compare(name, measurements) for name in UNEVEN}


def compare(name: str, measurements: dict[tuple[str, str], list[Measurement]]) -> dict[str, Any]:
    """Summarises one case of `uneven`: each layout, and the ratio of asynchronous to synchronous."""
    *layouts, horizon = UNEVEN[name]
    limits = [LANES * horizon / ideal_seconds(layout, horizon) for layout in layouts]
    rates = [[measurement.steps_per_s for measurement in measurements[name, layout]] for layout in layouts]
    return {
        "layouts": {
            layout: {
                "steps_per_s": summary(rate),
                "limit": limit,
                "cpu_us_per_step": summary([each.cpu_us_per_step for each in measurements[name, layout]]),
                "lag": statistics.fmean(each.lag for each in measurements[name, layout]),
                "lag_max": max(each.lag_max for each in measurements[name, layout]),
            }
            for layout, limit, rate in zip(layouts, limits, rates, strict=True)
        },
        "ratio": ratio(rates[1], rates[0]),
        "ratio_limit": limits[1] / limits[0],
    }


def ideal_seconds(layout: str, horizon: int) -> float:
    """Returns the expected duration of an iteration if only environment steps took time."""
    if "take" in layout:
        return mean_seconds(horizon)
    if layout.startswith("seed"):
        return horizon * longest_seconds(1, LANES)
    return longest_seconds(horizon, LANES)


def even(args: argparse.Namespace) -> dict[str, Any]:
    """Measures acting and learning that take equally long, alternating and overlapping, on one core each."""
    trainings = {name: Training(IMPALA(**EVEN), EVEN_ENV, layout) for name, layout in EVEN_LAYOUTS.items()}
    columns = [f"{name}, {column}" for name in trainings for column in ("total", "actor", "learner")]
    ms: dict[str, list[float]] = {column: [] for column in columns}
    rates: dict[str, list[float]] = {name: [] for name in trainings}
    cores: dict[str, list[float]] = {name: [] for name in trainings}
    lags: list[float] = []
    iterations = max(8, round(args.seconds / 0.04))
    for round_ in range(args.rounds + 1):
        for name, training in trainings.items():
            measurement = training.run(iterations if round_ else 4)
            if round_:
                rate = measurement.steps_per_s
                rates[name].append(rate)
                cores[name].append(measurement.cpu_us_per_step * rate / 1e6)
                ms[f"{name}, total"].append(1e3 * training.steps_per_iteration / rate)
                for role in ("actor", "learner"):
                    ms[f"{name}, {role}"].append(1e3 * training.seconds[role] / iterations)
                lags.append(measurement.lag)
                log(f"{round_} {training.layout}: {ms[f'{name}, total'][-1]:.1f} ms per iteration")
    acting, learning = ms["synchronous, actor"], ms["synchronous, learner"]
    return {
        "ms_per_iteration": {name: summary(values) for name, values in ms.items()},
        "cores": {name: summary(values) for name, values in cores.items()},
        "acting / learning": ratio(acting, learning),
        "ratio": ratio(rates["asynchronous"], rates["synchronous"]),
        "ratio_limit": summary([(a + b) / max(a, b) for a, b in zip(acting, learning, strict=True)]),
        "lag": max(lags),
    }


def operations(args: argparse.Namespace) -> dict[str, Any]:
    """Measures the microseconds of single operations, and of exchanges between two threads."""
    us: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        costs = stream_costs(args.times) | admission_costs(args.times, LANES) | admission_costs(args.times, MANY_LANES)
        costs |= {
            "two threads: round trip over two streams": stream_round_trip(args.times),
            "two threads: one iteration of one lane": lane_iteration(args.times),
        }
        for name, cost in costs.items():
            us.setdefault(name, []).append(cost)
    return {"us": {name: summary(values) for name, values in us.items()}}


def stream_costs(times: int) -> dict[str, float]:
    stream = Stream(RunControl(), "actor[0]", "learner[0]", "trajectory")
    put, get = [], []
    for item in range(times):
        put.append(call_us(partial(stream.put, item)))
        get.append(call_us(stream.get))
    return {"Stream.put": statistics.median(put), "Stream.get": statistics.median(get)}


def admission_costs(times: int, count: int) -> dict[str, float]:
    """Measures each operation of `count` lanes. All lanes are in progress, with a limit on lag."""
    admission = make_admission(count, times, 2 * count)
    stopwatches = [Stopwatch(f"actor[{index}]") for index in range(count)]
    us: dict[str, list[float]] = {name: [] for name in ("begin", "read", "mark_ready", "form_batch", "publish")}
    for iteration in range(1, times // count + 1):
        for index in range(count):
            us["begin"].append(call_us(partial(admission.begin, index, iteration, stopwatches[index])))
            us["read"].append(call_us(partial(admission.read, index)))
            us["mark_ready"].append(call_us(partial(admission.mark_ready, index, iteration)))
        for _ in range(count):
            us["form_batch"].append(call_us(admission.form_batch))
            us["publish"].append(call_us(partial(admission.publish, iteration)))
    return {f"Admission.{name}, {count} lanes": statistics.median(values) for name, values in us.items()}


def stream_round_trip(times: int) -> float:
    """Returns the microseconds from putting a value to getting the other thread's reply."""
    control = RunControl()
    requests, replies = Stream(control, "a", "b", "request"), Stream(control, "b", "a", "reply")

    def reply() -> None:
        for _ in range(times):
            replies.put(requests.get())

    def request() -> None:
        for item in range(times):
            requests.put(item)
            replies.get()

    return two_threads_us(reply, request) / times


def lane_iteration(times: int) -> float:
    """Returns the microseconds of an iteration in which a lane and its consumer only synchronise."""
    admission, stopwatch = make_admission(1, times, 1), Stopwatch("actor[0]")

    def act() -> None:
        for iteration in range(1, times + 1):
            admission.begin(0, iteration, stopwatch)
            admission.read(0)
            admission.mark_ready(0, iteration)

    def learn() -> None:
        for iteration in range(times):
            admission.form_batch()
            admission.publish(iteration)

    return two_threads_us(learn, act) / times


def make_admission(count: int, times: int, max_lag: int) -> Admission:
    names = tuple(f"actor[{index}]" for index in range(count))
    return Admission(RunControl(), "learner[0]", names, 1, times * count, max_lag)


def two_threads_us(background: Callable[[], None], foreground: Callable[[], None]) -> float:
    """Returns the microseconds until both functions, each on its own thread, have returned."""
    thread = threading.Thread(target=background, daemon=True)
    started = time.perf_counter()
    thread.start()
    foreground()
    thread.join()
    return 1e6 * (time.perf_counter() - started)


def call_us(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return 1e6 * (time.perf_counter() - started)


def peers(args: argparse.Namespace) -> dict[str, Any]:
    """Measures the environment steps per second of IMPALA while it trains, with weft and with RLlib."""
    install_peers()
    names = ("horizon", "lr", "gamma", "entropy_weight", "value_weight", "max_grad_norm")
    settings: dict[str, Any] = {name: PEER_SETTINGS[name] for name in names}
    algo = IMPALA(num_envs=PEER_SETTINGS["envs"], hidden=tuple(PEER_SETTINGS["hidden"]), **settings)
    training = Training(algo, f"gym:{PEER_SETTINGS['env']}", WEFT.partition(", ")[2])
    # weft runs for about as long as RLlib, on any machine.
    iterations = max(16, round(args.seconds * training.run(32).steps_per_s / training.steps_per_iteration))
    rates: dict[str, list[float]] = {name: [] for name in (WEFT, *RLLIB)}
    learned: dict[str, list[float]] = {name: [] for name in RLLIB}
    versions: dict[str, str] = {}
    for round_ in range(args.peer_rounds):
        rates[WEFT].append(training.run(iterations).steps_per_s)
        log(f"{round_} {WEFT}: {rates[WEFT][-1]:,.0f} steps/s")
        for name, options in RLLIB.items():
            report = run_rllib(*options, seed=round_, seconds=args.seconds)
            rates[name].append(report["steps_per_s"])
            learned[name].append(report["learned_per_s"])
            versions |= report["versions"]
            log(f"{round_} {name}: {report['steps_per_s']:,.0f} steps/s")
    return {
        "versions": versions,
        "steps_per_s": {name: summary(values) for name, values in rates.items()},
        "learned_per_s": {name: summary(values) for name, values in learned.items()},
        "ratios": {f"{WEFT} / {name}": ratio(rates[WEFT], rates[name]) for name in RLLIB},
    }


def run_rllib(*options: str, seed: int, seconds: float) -> dict[str, Any]:
    """Trains with RLlib in its own process. Returns the report that it prints."""
    command = [PEERS / "bin" / "python", HERE / "peers" / "rllib_impala.py", "--settings", json.dumps(PEER_SETTINGS)]
    command += [*options, "--seed", str(seed), "--seconds", str(seconds)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if completed.returncode:
        raise RuntimeError(f"rllib {' '.join(options)} failed:\n{completed.stderr[-4000:]}")
    return json.loads(completed.stdout.splitlines()[-1])


PARTS: dict[str, tuple[Callable[[argparse.Namespace], dict[str, Any]], dict[str, str]]] = {
    "uneven": (uneven, ONE_THREAD_PER_PROGRAM),
    "even": (even, ONE_THREAD_PER_PROGRAM),
    "operations": (operations, {}),
    "peers": (peers, {}),
}
"""By name, the function that measures a part, and environment variables of its process."""
SETTINGS = ("rounds", "seconds", "times", "peer_rounds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every part except peers (default: 5)")
    parser.add_argument("--peer-rounds", type=int, default=3, help="rounds of peers (default: 3)")
    parser.add_argument("--seconds", type=float, default=4.0, help="approximate duration of one run (default: 4)")
    parser.add_argument("--times", type=int, default=20_000, help="calls of each operation per round (default: 20000)")
    # Measures the part in this process and prints the result.
    parser.add_argument("--in-process", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_process:
        measure, _ = PARTS[args.in_process]
        print(json.dumps(measure(args)))
        return
    settings = {name: getattr(args, name) for name in SETTINGS}
    parts = {name: run_part(name, settings) for name in PARTS if args.only in (None, name)}
    results = RESULTS / "async.json"
    record = (json.loads(results.read_text()) if args.only and results.exists() else {}) | parts
    text = "\n".join(table(record)) + "\n"
    sys.stdout.write(text)
    RESULTS.mkdir(exist_ok=True)
    results.write_text(json.dumps(record, indent=2) + "\n")
    (RESULTS / "async.md").write_text(text)


def run_part(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Measures a part in its own process, because XLA reads its flags only when it starts."""
    load = os.getloadavg()[0]
    options = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
    command = [sys.executable, __file__, "--in-process", name, *options]
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | PARTS[name][1])
    if completed.returncode:
        raise SystemExit(f"{name} failed: the error is above")
    part = json.loads(completed.stdout.splitlines()[-1])
    return part | {"settings": settings, "load before": load, "machine": machine()}


def machine() -> str:
    """Describes the device, the cores and the versions of the libraries."""
    cores = f"{len(os.sched_getaffinity(0))} cores"
    versions = f"python {platform.python_version()}, jax {jax.__version__}, gymnasium {gym.__version__}"
    return f"{jax.devices()[0].device_kind}, {cores}, {versions}"


def table(record: dict[str, Any]) -> Iterator[str]:
    yield "<!-- Written by benchmarks/async.py. -->"
    yield "Medians (minimum to maximum)."
    for name, part_table in zip(PARTS, (uneven_table, even_table, operations_table, peers_table), strict=True):
        if name in record:
            yield from part_table(record[name])
            load = f"load average before the measurement: {record[name]['load before']:.1f}"
            yield from ("", f"Measured on {record[name]['machine']}; {load}.")


def uneven_table(part: dict[str, Any]) -> Iterator[str]:
    settings = part["settings"]
    rounds = f"{settings['rounds']} rounds of about {settings['seconds']:g} s"
    longest = [f"{longest_seconds(steps, LANES) * 1e3:.1f} ms for {steps} steps" for steps in (5, 20)]
    yield ""
    yield f"IMPALA with {LANES} environments, one per replica, {rounds}. A step takes 1 ms, and 50 ms with probability"
    yield f"1/50 ({mean_seconds(1) * 1e3:.2f} ms on average). A limit is the rate if only environment steps took time:"
    yield "synchronous actors wait for the slowest of them once per iteration"
    yield f"({', '.join(longest)});"
    yield "synchronous environments with central inference wait for the slowest at every step"
    yield f"({longest_seconds(1, LANES) * 1e3:.2f} ms)."
    yield ""
    yield "| roles that wait | layout | steps per second | limit | processor time per step, us | lag, mean and max |"
    yield "|---|---|---|---|---|---|"
    for name in UNEVEN:
        for layout, values in part[name]["layouts"].items():
            lag = f"{values['lag']:.1f}, {values['lag_max']:.0f}" if "take" in layout else ""
            columns = (
                thousands(values["steps_per_s"]),
                f"{values['limit']:,.0f}",
                spread(values["cpu_us_per_step"]),
                lag,
            )
            yield f"| {name} | `{layout}` | {' | '.join(columns)} |"
    yield from ("", "| roles that wait | asynchronous / synchronous | limit |", "|---|---|---|")
    for name in UNEVEN:
        yield f"| {name} | {spread(part[name]['ratio'])} | {part[name]['ratio_limit']:.3g} |"


def even_table(part: dict[str, Any]) -> Iterator[str]:
    settings = part["settings"]
    size = f"{EVEN['num_envs']} environments x {EVEN['horizon']} steps"
    yield from ("", f"IMPALA with acting and learning that take about the same time, {EVEN_ENV}, {size},")
    rounds = f"{settings['rounds']} rounds of about {settings['seconds']:g} s"
    yield f"{rounds}. Largest mean lag of a run: {part['lag']:.2g}."
    yield from ("", "| quantity | measured |", "|---|---|")
    for name, values in part["ms_per_iteration"].items():
        kind, _, column = name.partition(", ")
        yield f"| `{EVEN_LAYOUTS[kind]}`, {column}, ms per iteration | {spread(values)} |"
    for kind, values in part["cores"].items():
        yield f"| `{EVEN_LAYOUTS[kind]}`, cores in use | {spread(values)} |"
    yield f"| acting / learning | {spread(part['acting / learning'])} |"
    yield f"| asynchronous / synchronous | {spread(part['ratio'])} |"
    yield f"| its limit, from the synchronous acting and learning times | {spread(part['ratio_limit'])} |"


def operations_table(part: dict[str, Any]) -> Iterator[str]:
    settings = part["settings"]
    yield from (
        "",
        f"Operations within one process, {settings['rounds']} rounds of {settings['times']:,} calls each.",
        "",
    )
    yield from ("| operation | microseconds |", "|---|---|")
    for name, us in part["us"].items():
        yield f"| {name} | {spread(us)} |"


def peers_table(part: dict[str, Any]) -> Iterator[str]:
    settings = part["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in part["versions"].items())
    size = f"{PEER_SETTINGS['envs']} environments, rollouts of {PEER_SETTINGS['horizon']} steps"
    rounds = "1 round" if settings["peer_rounds"] == 1 else f"{settings['peer_rounds']} rounds"
    yield from ("", f"IMPALA on Gymnasium's CartPole, {size}, two layers of 64,")
    yield from (f"{rounds} of about {settings['seconds']:g} s, compared with {versions}.", "")
    yield from ("| library | steps per second | steps learned from, per second |", "|---|---|---|")
    for name, rate in part["steps_per_s"].items():
        learned = part["learned_per_s"].get(name)
        yield f"| {name} | {thousands(rate)} | {thousands(learned) if learned else 'all'} |"
    yield from ("", "| ratio of steps per second | measured |", "|---|---|")
    for name, values in part["ratios"].items():
        yield f"| {name} | {spread(values)} |"


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _mean(metric: Any) -> float:
    return float(metric.total.sum() / metric.count.sum())


if __name__ == "__main__":
    main()
