"""What asynchrony gains, and what it costs: every asynchronous layout beside its synchronous form, in one run.

    python benchmarks/async.py                      # everything: benchmarks/results/async.{md,json}
    python benchmarks/async.py --only uneven        # one part; the results keep what they say of the others

`uneven` is environments in plain Python whose steps mostly take 1 ms and sometimes 50: who waits for all of them waits
for the slowest. `even` is acting and learning that take equally long, on a core each: in turn they take twice as long
as at the same time. `operations` is what putting, taking, reading and publishing cost by themselves. `peers` is IMPALA
on Gymnasium's CartPole beside RLlib's, which is installed into `benchmarks/.peers` when first needed.

Every part runs in a process of its own. In it every contender runs in every round, in turn; a ratio is taken within a
round, and its median over the rounds is reported with the smallest and the largest. Start-up and compilation are not
counted. Processor time is reported too: other load changes it less than it changes rates, though not by nothing.
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
from envs import PEERS, install_peers, ratio, spread, summary, thousands
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

# One core for a role: or else a role that waits would lend its core to the one that does not.
# XLA has one pool of threads for all of them, as large as the machine, so that this is asked of the programs.
ONE_CORE_EACH = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false --xla_cpu_enable_concurrency_optimized_scheduler=false"
}

LANES = 8
MANY_LANES = 64
# By name: the layout in step, the layout that is not, and the steps of every environment in one iteration. Actors that
# wait for each other do so once an iteration, environments with central inference at every step.
UNEVEN = {
    "actors, 5 steps": ("actors:actors=8", "impala:actors=8,take=1", 5),
    "actors, 20 steps": ("actors:actors=8", "impala:actors=8,take=1", 20),
    "central inference, 20 steps": ("seed:envs=8", "seed:envs=8,take=1", 20),
    "central inference, 64 steps": ("seed:envs=8", "seed:envs=8,take=1", 64),
}
# Chosen so that acting and learning take about the same time; what they take is measured.
EVEN: dict[str, Any] = {
    "num_envs": 64,
    "horizon": 128,
    "hidden": (64,),
    "shared": True,
}
EVEN_ENV = "gymnax:Breakout-MinAtar"
EVEN_LAYOUTS = {"in step": "actors:actors=1", "at once": "impala:actors=1"}

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

Run = Callable[..., Any]


@dataclass
class Pace:
    """How one run of a layout went."""

    steps_per_s: float
    cpu_us_per_step: float
    """Processor time of the whole process."""
    lag: float
    """The mean over the run, in versions."""
    lag_max: float


@dataclass
class Training:
    """A layout, compiled once, that trains again and again from where it was."""

    algo: Algorithm
    env: World | str
    layout: str
    seconds: dict[str, float] = field(default_factory=dict)
    """By role, what its compiled runs have taken since this was last cleared."""

    def __post_init__(self) -> None:
        plan = Plan.of(self.algo, self.env, self.layout)
        projection = plan.project()
        self.steps = projection.trace.steps_per_iteration
        self.engine, self.state = LocalEngine(projection), plan.init(0)
        self.engine.executables = {
            (role, index): {run: self.timed(function, role) for run, function in runs.items()}
            for (role, index), runs in self.engine.executables.items()
        }

    def timed(self, function: Run, role: str) -> Run:
        def call(*inputs: Any) -> Any:
            began = time.perf_counter()
            results = function(*inputs)
            self.seconds[role] = self.seconds.get(role, 0.0) + time.perf_counter() - began
            return results

        return call

    def go(self, iterations: int) -> Pace:
        """Train on; the rate is that of the run without its first fifth, in which it gets going."""
        times: list[float] = []
        lags: list[dict[str, float]] = []

        def watch(metrics: dict[str, Any], state: Any) -> None:
            times.append(time.perf_counter())
            lags.append({name: _mean(metrics[name]) for name in ("lag", "lag_max") if name in metrics})

        self.seconds.clear()
        cpu = time.process_time()
        self.state = jax.block_until_ready(self.engine.run(self.state, iterations, watch))
        cpu = time.process_time() - cpu
        first = len(times) // 5
        rate = (len(times) - 1 - first) * self.steps / (times[-1] - times[first])
        counted = [each for each in lags[first:] if each] or [{"lag": 0.0, "lag_max": 0.0}]
        return Pace(
            rate,
            1e6 * cpu / (iterations * self.steps),
            statistics.fmean(each["lag"] for each in counted),
            max(each["lag_max"] for each in counted),
        )


def uneven(args: argparse.Namespace) -> dict[str, Any]:
    """Steps per second with environments that take unequal time, in step and not."""
    world = World.of("uneven:Uneven", {"vector": "inprocess"})
    trainings: dict[tuple[str, bool], tuple[Training, int]] = {}
    for name, (in_step, free, horizon) in UNEVEN.items():
        for layout in (in_step, free):
            training = Training(IMPALA(num_envs=LANES, horizon=horizon), world, layout)
            ideal = least_seconds(layout, horizon)
            trainings[name, layout == free] = training, max(8, round(args.seconds / ideal))
    paces: dict[tuple[str, bool], list[Pace]] = {key: [] for key in trainings}
    for round_ in range(args.rounds + 1):
        for key, (training, iterations) in trainings.items():
            pace = training.go(iterations if round_ else 4)
            if round_:
                paces[key].append(pace)
                tell(f"{round_} {training.layout}, {key[0]}: {pace.steps_per_s:,.0f} steps/s")
    return {name: compared(name, paces[name, False], paces[name, True]) for name in UNEVEN}


def compared(name: str, in_step: list[Pace], free: list[Pace]) -> dict[str, Any]:
    layouts, horizon = UNEVEN[name][:2], UNEVEN[name][2]
    limits = [LANES * horizon / least_seconds(layout, horizon) for layout in layouts]
    rates = [[pace.steps_per_s for pace in paces] for paces in (in_step, free)]
    return {
        "layouts": {
            layout: {
                "steps_per_s": summary([pace.steps_per_s for pace in paces]),
                "limit": limit,
                "cpu_us_per_step": summary([pace.cpu_us_per_step for pace in paces]),
                "lag": statistics.fmean(pace.lag for pace in paces),
                "lag_max": max(pace.lag_max for pace in paces),
            }
            for layout, limit, paces in zip(layouts, limits, (in_step, free), strict=True)
        },
        "ratio": ratio(rates[1], rates[0]),
        "ratio_limit": limits[1] / limits[0],
    }


def least_seconds(layout: str, horizon: int) -> float:
    """What an iteration takes on average if nothing but the environments takes any time."""
    if "take" in layout:
        return mean_seconds(horizon)
    if layout.startswith("seed"):
        return horizon * longest_seconds(1, LANES)
    return longest_seconds(horizon, LANES)


def even(args: argparse.Namespace) -> dict[str, Any]:
    """Iterations of acting and learning, in turn and at the same time, on a core each."""
    trainings = {name: Training(IMPALA(**EVEN), EVEN_ENV, layout) for name, layout in EVEN_LAYOUTS.items()}
    ms: dict[str, list[float]] = {f"{name}, {what}": [] for name in trainings for what in ("all", "actor", "learner")}
    rates: dict[str, list[float]] = {name: [] for name in trainings}
    cores: dict[str, list[float]] = {name: [] for name in trainings}
    lags: list[float] = []
    iterations = max(8, round(args.seconds / 0.04))
    for round_ in range(args.rounds + 1):
        for name, training in trainings.items():
            pace = training.go(iterations if round_ else 4)
            if round_:
                rates[name].append(pace.steps_per_s)
                cores[name].append(pace.cpu_us_per_step * pace.steps_per_s / 1e6)
                ms[f"{name}, all"].append(1e3 * training.steps / pace.steps_per_s)
                for role in ("actor", "learner"):
                    ms[f"{name}, {role}"].append(1e3 * training.seconds[role] / iterations)
                lags.append(pace.lag)
                tell(f"{round_} {training.layout}: {ms[f'{name}, all'][-1]:.1f} ms an iteration")
    acting, learning = ms["in step, actor"], ms["in step, learner"]
    return {
        "ms_per_iteration": {name: summary(each) for name, each in ms.items()},
        "cores": {name: summary(each) for name, each in cores.items()},
        "acting / learning": ratio(acting, learning),
        "ratio": ratio(rates["at once"], rates["in step"]),
        "ratio_limit": summary([(a + b) / max(a, b) for a, b in zip(acting, learning, strict=True)]),
        "lag": max(lags),
    }


def operations(args: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of each operation by itself, and of exchanges between two threads."""
    us: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        found = stream_costs(args.times) | lane_costs(args.times, LANES) | lane_costs(args.times, MANY_LANES)
        found |= {
            "two threads: there and back by two streams": there_and_back(args.times),
            "two threads: one lane, from beginning to beginning": lane_and_taker(args.times),
        }
        for name, each in found.items():
            us.setdefault(name, []).append(each)
    return {"us": {name: summary(each) for name, each in us.items()}}


def stream_costs(times: int) -> dict[str, float]:
    stream = Stream(RunControl(), "actor[0]", "learner[0]", "trajectory")
    put, get = [], []
    for item in range(times):
        put.append(clocked(partial(stream.put, item)))
        get.append(clocked(stream.get))
    return {"Stream.put": statistics.median(put), "Stream.get": statistics.median(get)}


def lane_costs(times: int, count: int) -> dict[str, float]:
    """The life of work in a register's lanes, all of them under way, with a bound on the lag to be kept."""
    lanes, clocks = registers(count, times, 2 * count), [Stopwatch(f"actor[{index}]") for index in range(count)]
    taken: dict[str, list[float]] = {name: [] for name in ("begin", "read", "arrive", "form", "publish")}
    for number in range(1, times // count + 1):
        for index in range(count):
            taken["begin"].append(clocked(partial(lanes.begin, index, number, clocks[index])))
            taken["read"].append(clocked(partial(lanes.read, index)))
            taken["arrive"].append(clocked(partial(lanes.mark_ready, index, number)))
        for _ in range(count):
            taken["form"].append(clocked(lanes.form_batch))
            taken["publish"].append(clocked(partial(lanes.publish, number)))
    return {f"Lanes.{name}, of {count} lanes": statistics.median(each) for name, each in taken.items()}


def there_and_back(times: int) -> float:
    """Microseconds from putting a value to getting the other thread's answer."""
    wait = RunControl()
    there, back = Stream(wait, "a", "b", "question"), Stream(wait, "b", "a", "answer")

    def answer() -> None:
        for _ in range(times):
            back.put(there.get())

    def ask() -> None:
        for item in range(times):
            there.put(item)
            back.get()

    return side_by_side(answer, ask) / times


def lane_and_taker(times: int) -> float:
    """Microseconds of one iteration in which a lane does nothing but exchange with whoever takes from it."""
    lanes, clock = registers(1, times, 1), Stopwatch("actor[0]")

    def act() -> None:
        for number in range(1, times + 1):
            lanes.begin(0, number, clock)
            lanes.read(0)
            lanes.mark_ready(0, number)

    def learn() -> None:
        for number in range(times):
            lanes.form_batch()
            lanes.publish(number)

    return side_by_side(learn, act) / times


def registers(count: int, times: int, max_lag: int) -> Admission:
    names = tuple(f"actor[{index}]" for index in range(count))
    return Admission(RunControl(), "learner[0]", names, 1, times * count, max_lag)


def side_by_side(one: Callable[[], None], other: Callable[[], None]) -> float:
    """Microseconds that two threads take for what they do together."""
    thread = threading.Thread(target=one, daemon=True)
    began = time.perf_counter()
    thread.start()
    other()
    thread.join()
    return 1e6 * (time.perf_counter() - began)


def clocked(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return 1e6 * (time.perf_counter() - began)


def peers(args: argparse.Namespace) -> dict[str, Any]:
    """Environment steps per second of IMPALA while it learns, by weft and by RLlib."""
    install_peers()
    names = ("horizon", "lr", "gamma", "entropy_weight", "value_weight", "max_grad_norm")
    settings: dict[str, Any] = {name: PEER_SETTINGS[name] for name in names}
    algo = IMPALA(num_envs=PEER_SETTINGS["envs"], hidden=tuple(PEER_SETTINGS["hidden"]), **settings)
    training = Training(algo, f"gym:{PEER_SETTINGS['env']}", WEFT.partition(", ")[2])
    # About as long as RLlib gets, whatever machine this is.
    iterations = max(16, round(args.seconds * training.go(32).steps_per_s / training.steps))
    rates: dict[str, list[float]] = {name: [] for name in (WEFT, *RLLIB)}
    learned: dict[str, list[float]] = {name: [] for name in RLLIB}
    versions: dict[str, str] = {}
    for round_ in range(args.peer_rounds):
        rates[WEFT].append(training.go(iterations).steps_per_s)
        tell(f"{round_} {WEFT}: {rates[WEFT][-1]:,.0f} steps/s")
        for name, options in RLLIB.items():
            found = peer(*options, seed=round_, seconds=args.seconds)
            rates[name].append(found["steps_per_s"])
            learned[name].append(found["learned_per_s"])
            versions |= found["versions"]
            tell(f"{round_} {name}: {found['steps_per_s']:,.0f} steps/s")
    return {
        "versions": versions,
        "steps_per_s": {name: summary(each) for name, each in rates.items()},
        "learned_per_s": {name: summary(each) for name, each in learned.items()},
        "ratios": {f"{WEFT} / {name}": ratio(rates[WEFT], rates[name]) for name in RLLIB},
    }


def peer(*options: str, seed: int, seconds: float) -> dict[str, Any]:
    """What one process of RLlib's reports."""
    command = [PEERS / "bin" / "python", HERE / "peers" / "rllib_impala.py", "--settings", json.dumps(PEER_SETTINGS)]
    command += [*options, "--seed", str(seed), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"rllib {' '.join(options)} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


PARTS: dict[str, tuple[Callable[[argparse.Namespace], dict[str, Any]], dict[str, str]]] = {
    "uneven": (uneven, ONE_CORE_EACH),
    "even": (even, ONE_CORE_EACH),
    "operations": (operations, {}),
    "peers": (peers, {}),
}
SETTINGS = ("rounds", "seconds", "times", "peer_rounds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-rounds", type=int, default=3, help="of the part with RLlib")
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of one run, about, if nothing but waiting took time"
    )
    parser.add_argument("--times", type=int, default=20_000, help="that an operation is done in a round")
    parser.add_argument("--here", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(PARTS[args.here][0](args)))
        return
    settings = {name: getattr(args, name) for name in SETTINGS}
    found = {name: apart(name, settings) for name in PARTS if args.only in (None, name)}
    kept = RESULTS / "async.json"
    record = (json.loads(kept.read_text()) if args.only and kept.exists() else {}) | found
    text = "\n".join(table(record)) + "\n"
    sys.stdout.write(text)
    RESULTS.mkdir(exist_ok=True)
    kept.write_text(json.dumps(record, indent=2) + "\n")
    (RESULTS / "async.md").write_text(text)


def apart(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What a part finds, in a process of its own: how XLA uses cores is settled when it starts."""
    load = os.getloadavg()[0]
    options = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
    command = [sys.executable, __file__, "--here", name, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | PARTS[name][1])
    if done.returncode:
        raise SystemExit(f"{name} failed, see above")
    return json.loads(done.stdout.splitlines()[-1]) | {"settings": settings, "load before": load, "machine": machine()}


def machine() -> str:
    """What this runs on and with."""
    cores = f"{len(os.sched_getaffinity(0))} cores"
    versions = f"python {platform.python_version()}, jax {jax.__version__}, gymnasium {gym.__version__}"
    return f"{jax.devices()[0].device_kind}, {cores}, {versions}"


def table(record: dict[str, Any]) -> Iterator[str]:
    yield "<!-- Written by benchmarks/async.py. -->"
    yield "Medians (least to most)."
    for name, part in zip(PARTS, (uneven_table, even_table, operations_table, peers_table), strict=True):
        if name in record:
            yield from part(record[name])
            load = f"before it began {record[name]['load before']:.1f} others wanted a core"
            yield from ("", f"On {record[name]['machine']}; {load}.")


def uneven_table(found: dict[str, Any]) -> Iterator[str]:
    settings = found["settings"]
    rounds = f"{settings['rounds']} rounds of about {settings['seconds']:g} s"
    yield from ("", f"Environments that take 1 ms for a step and 50 one time in 50 ({mean_seconds(1) * 1e3:.2f} ms on")
    yield f"average), {LANES} of them, one for each replica; IMPALA, {rounds}. A limit is what there would be if"
    yield "nothing but the environments took any time: in step, actors wait for the slowest of all once an iteration"
    longest = [f"{longest_seconds(steps, LANES) * 1e3:.1f} ms for {steps} steps" for steps in (5, 20)]
    yield f"({', '.join(longest)}),"
    yield f"environments with central inference at every step ({longest_seconds(1, LANES) * 1e3:.2f} ms)."
    yield from (
        "",
        "| who waits | layout | steps per second | limit | processor time, us per step | lag, mean and most |",
    )
    yield "|---|---|---|---|---|---|"
    for name in UNEVEN:
        for layout, each in found[name]["layouts"].items():
            lag = f"{each['lag']:.1f}, {each['lag_max']:.0f}" if "take" in layout else ""
            columns = (thousands(each["steps_per_s"]), f"{each['limit']:,.0f}", spread(each["cpu_us_per_step"]), lag)
            yield f"| {name} | `{layout}` | {' | '.join(columns)} |"
    yield from ("", "| who waits | asynchronous / in step | limit |", "|---|---|---|")
    for name in UNEVEN:
        yield f"| {name} | {spread(found[name]['ratio'])} | {found[name]['ratio_limit']:.3g} |"


def even_table(found: dict[str, Any]) -> Iterator[str]:
    settings = found["settings"]
    size = f"{EVEN['num_envs']} environments x {EVEN['horizon']} steps"
    yield from ("", f"Acting and learning that take about the same time: IMPALA, {EVEN_ENV}, {size},")
    yield f"{settings['rounds']} rounds of about {settings['seconds']:g} s; lag {found['lag']:.2g} on average at most."
    yield ""
    yield from ("| what | measured |", "|---|---|")
    for name, each in found["ms_per_iteration"].items():
        way, _, what = name.partition(", ")
        yield f"| `{EVEN_LAYOUTS[way]}`, {what}, ms per iteration | {spread(each)} |"
    for way, each in found["cores"].items():
        yield f"| `{EVEN_LAYOUTS[way]}`, cores in use | {spread(each)} |"
    yield f"| acting / learning | {spread(found['acting / learning'])} |"
    yield f"| asynchronous / in step | {spread(found['ratio'])} |"
    yield f"| its limit, from acting and learning in step | {spread(found['ratio_limit'])} |"


def operations_table(found: dict[str, Any]) -> Iterator[str]:
    settings = found["settings"]
    yield from ("", f"Operations inside a process, {settings['rounds']} rounds of {settings['times']:,} each.", "")
    yield from ("| operation | microseconds |", "|---|---|")
    for name, us in found["us"].items():
        yield f"| {name} | {spread(us)} |"


def peers_table(found: dict[str, Any]) -> Iterator[str]:
    settings = found["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    size = f"{PEER_SETTINGS['envs']} environments, pieces of {PEER_SETTINGS['horizon']} steps"
    rounds = f"{settings['peer_rounds']} rounds of about {settings['seconds']:g} s"
    yield from ("", f"IMPALA on Gymnasium's CartPole, {size}, two layers of 64, {rounds},")
    yield from (f"beside {versions}.", "")
    yield from ("| trained by | steps per second | of them learned from |", "|---|---|---|")
    for name, rate in found["steps_per_s"].items():
        learned = found["learned_per_s"].get(name)
        yield f"| {name} | {thousands(rate)} | {thousands(learned) if learned else 'all'} |"
    yield from ("", "| ratio | measured |", "|---|---|")
    for name, each in found["ratios"].items():
        yield f"| {name} | {spread(each)} |"


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _mean(metric: Any) -> float:
    return float(metric.total.sum() / metric.count.sum())


if __name__ == "__main__":
    main()
