"""Measures how fast weft trains on environments in plain Python, and how much time it adds to their steps.

    python benchmarks/envs.py                       # all parts: benchmarks/results/envs.{md,json}
    python benchmarks/envs.py --only share          # one part; the results keep the others as they were

`train` compares PPO on Gymnasium's CartPole with RLlib and Stable-Baselines3, each in its own process and in several
configurations. The peers are installed into `benchmarks/.peers` when first needed. `evaluate` compares training with
and without evaluations. `share` is the time that environments take to step, as a share of the time that a program takes
to choose actions, step the environments and store the rollouts.

Each round measures every contender in turn. Ratios are computed within a round. The report has their median over the
rounds, with the minimum and the maximum. Start-up and compilation are not counted.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from summaries import ratio, spread, summary, thousands

from weft import envs
from weft.algorithm import Algorithm
from weft.envs.adapters.gymnasium_constructor import from_id
from weft.envs.timestep import Env
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.actor_critic import ActorCritic
from weft.ops.distributions import Distribution, draw_noise
from weft.ops.rollout import RolloutState, Transition, rollout
from weft.runtime.driver import Plan
from weft.runtime.local import LocalEngine

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PEERS = HERE / ".peers"
REQUIREMENTS = HERE / "peers" / "requirements.txt"

ENVS = 8
HORIZON = 128
EVAL_EVERY = 20_000
EVAL_ITERATIONS = 196
# Ticks per measurement. A tick steps all environments once. Measurements are short and many, so that other load affects
# all contenders alike.
TICKS = {"CartPole-v1": 640, "HalfCheetah-v5": 256}

# By library and configuration, the options of the library's script. The first configuration is the library's default.
# The ratios compare the fastest configuration of each library.
CONFIGURATIONS = {
    "weft": {
        "fused": ("--layout", "fused"),
        "actors": ("--layout", "actors"),
    },
    "rllib": {
        "2 runners x 4": ("--runners", "2"),
        "2 runners x 4, 1 thread": ("--runners", "2", "--threads", "1"),
        "1 runner x 8, 1 thread": ("--runners", "1", "--threads", "1"),
        "no runners, 1 thread": ("--runners", "0", "--threads", "1"),
    },
    "sb3": {
        "in process": ("--vector", "dummy"),
        "in process, 1 thread": ("--vector", "dummy", "--threads", "1"),
        "in processes, 1 thread": ("--vector", "subproc", "--threads", "1"),
    },
}
Rates = dict[tuple[str, str], list[float]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Collected:
    """The state of a program that collects rollouts and does not learn."""

    net: ActorCritic
    rollout: RolloutState
    trajectory: Transition
    key: jax.Array


@dataclass(frozen=True, kw_only=True)
class Collect(Algorithm):
    """Collects rollouts without learning. The last rollout is part of the state, so that XLA must compute all of it."""

    def init(self, env: Env, key: jax.Array) -> Collected:
        key_net, key_env, key = jax.random.split(key, 3)
        spaces = env.observation_space, env.action_space
        net = ActorCritic(*spaces, hidden=(64, 64), activation="tanh", shared=False, key=key_net)
        start = RolloutState(*env.reset(key_env))
        _, shapes = jax.eval_shape(partial(self.collect, env), net, start, key)
        return Collected(net, start, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), key)

    def step(self, env: Env, state: Collected) -> tuple[Collected, dict[str, Mean]]:
        key, key_collect = jax.random.split(state.key)
        end, trajectory = self.collect(env, state.net, state.rollout, key_collect)
        env_state, metrics = env.episodes(end.env)
        return Collected(state.net, replace(end, env=env_state), trajectory, key), metrics

    def collect(
        self, env: Env, net: ActorCritic, start: RolloutState, key: jax.Array
    ) -> tuple[RolloutState, Transition]:
        key_act, key_env = jax.random.split(key)
        noise = self.noise(env, key_act)
        return rollout(env, partial(self.act, net), start, noise=noise, key=key_env, length=HORIZON)

    @fragment(name="act.noise")
    def noise(self, env: Env, key: jax.Array) -> jax.Array:
        return draw_noise(env.action_space, key, (HORIZON, env.num_envs))

    @fragment
    def act(self, net: ActorCritic, obs: Any, memory: Any, noise: jax.Array) -> tuple[jax.Array, Distribution, Any]:
        policy = net.policy(obs)
        return policy.sample(noise), policy, memory


class WeftCollector:
    """Collects rollouts with weft. Compiled once."""

    def __init__(self, env_id: str, layout: str) -> None:
        in_process = partial(envs.make, f"gym:{env_id}", vector="inprocess")
        plan = Plan.of(Collect(num_envs=ENVS), in_process, layout)
        self.engine, self.state = LocalEngine(plan.project()), plan.init(0)

    def collect(self, ticks: int) -> float:
        """Steps all environments `ticks` times. Returns the seconds."""
        started = time.perf_counter()
        self.state = jax.block_until_ready(self.engine.run(self.state, ticks // HORIZON))
        return time.perf_counter() - started

    def actions(self, ticks: int) -> np.ndarray:
        """Returns the actions of the last rollout, repeated to `ticks` steps."""
        return np.resize(np.asarray(self.state.trajectory.action), (ticks, *self.state.trajectory.action.shape[1:]))


class PlainCollector:
    """Steps the same environments in plain loops, without weft."""

    def __init__(self, env_id: str, net: ActorCritic) -> None:
        # Constructed as weft does it: without Gymnasium's checks of every call.
        self.envs = [from_id(env_id, {}).factory()() for _ in range(ENVS)]
        self.space = self.envs[0].action_space
        self.obs = np.stack([env.reset(seed=seed)[0] for seed, env in enumerate(self.envs)]).astype(np.float32)
        self.act = jax.jit(lambda obs, noise: Collect().act(net, obs, (), noise))

    def steps(self, actions: np.ndarray) -> tuple[float, float]:
        """Steps with the given actions. Returns the seconds in `step`, and in the whole loop with resets."""
        actions_by_tick = [self.env_actions(actions_t) for actions_t in actions]
        clock = time.perf_counter
        stepping, started = 0.0, clock()
        for env_actions in actions_by_tick:
            before = clock()
            stepped = [env.step(action) for env, action in zip(self.envs, env_actions, strict=True)]
            stepping += clock() - before
            for env, (_, _, terminated, truncated, _) in zip(self.envs, stepped, strict=True):
                if terminated or truncated:
                    env.reset()
        return stepping, clock() - started

    def by_hand(self, noise: jax.Array) -> float:
        """Collects a rollout with a hand-written loop: act, step, store. Returns the seconds."""
        started = time.perf_counter()
        transitions = []
        for noise_t in np.asarray(noise):
            action, policy, _ = self.act(self.obs, noise_t)
            env_actions = self.env_actions(np.asarray(action))
            stepped = [env.step(action) for env, action in zip(self.envs, env_actions, strict=True)]
            obs, reward, terminated, truncated, _ = zip(*stepped, strict=True)
            final_obs = np.array(obs, np.float32)
            transitions.append((self.obs, action, policy, np.array(reward), terminated, truncated, final_obs))
            self.obs = self.reset_ended(final_obs, [a or b for a, b in zip(terminated, truncated, strict=True)])
        return time.perf_counter() - started

    def reset_ended(self, obs: np.ndarray, ended: list[bool]) -> np.ndarray:
        """Resets the environments whose episode ended. Returns the observations with theirs replaced."""
        if not any(ended):
            return obs
        obs = obs.copy()
        for row in np.flatnonzero(ended):
            obs[row] = self.envs[row].reset()[0]
        return obs

    def env_actions(self, actions: np.ndarray) -> list[Any]:
        """Returns one action per environment, within the bounds and of the type that it expects."""
        if isinstance(self.space, gym.spaces.Box):
            return list(np.clip(actions, self.space.low, self.space.high))
        return actions.tolist()


def share(args: argparse.Namespace) -> dict[str, Any]:
    """Returns, by environment, the microseconds per tick of each loop, and the share that `step` takes of them."""
    with quiet_mujoco():
        return {env_id: share_of(env_id, ticks, args) for env_id, ticks in TICKS.items()}


def share_of(env_id: str, ticks: int, args: argparse.Namespace) -> dict[str, Any]:
    weft_collector = WeftCollector(env_id, args.layout)
    plain_collector = PlainCollector(env_id, weft_collector.state.net)
    noise = draw_noise(plain_collector.space, jax.random.key(0), (ticks, ENVS))
    us: dict[str, list[float]] = {"steps": [], "steps and resets": [], "by hand": [], "weft": []}
    for round_ in range(args.share_rounds + 1):
        weft = weft_collector.collect(ticks)
        actions = weft_collector.actions(ticks)
        seconds = (*plain_collector.steps(actions), plain_collector.by_hand(noise), weft)
        if round_:
            for name, value in zip(us, seconds, strict=True):
                us[name].append(1e6 * value / ticks)
    return {
        "us_per_tick": {name: summary(values) for name, values in us.items()},
        "share": ratio(us["steps"], us["weft"]),
        "share by hand": ratio(us["steps"], us["by hand"]),
    }


@contextmanager
def quiet_mujoco() -> Iterator[None]:
    """Changes to a temporary folder: MuJoCo writes its log into the current one."""
    previous = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(previous)


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the environment steps per second of training in every configuration, and their ratios."""
    install_peers()
    rates: Rates = {(library, name): [] for library, options in CONFIGURATIONS.items() for name in options}
    returns: Rates = {key: [] for key in rates}
    versions: dict[str, str] = {}
    for round_ in range(args.rounds):
        for library, name in rates:
            options = CONFIGURATIONS[library][name]
            report = train_once(library, *options, seed=round_, iterations=args.iterations)
            rates[library, name].append(report["steps_per_s"])
            returns[library, name].append(report["return_mean"])
            versions |= report["versions"] if library != "weft" else {}
            print(f"{round_} {library}, {name}: {report['steps_per_s']:,.0f} steps/s", file=sys.stderr, flush=True)
    return {
        "versions": versions,
        "steps_per_s": {f"{library}, {name}": summary(values) for (library, name), values in rates.items()},
        "return_mean": {f"{library}, {name}": summary(values) for (library, name), values in returns.items()},
        "ratios": dict(best_ratios(rates)),
    }


def best_ratios(rates: Rates) -> Iterator[tuple[str, dict[str, float]]]:
    """Divides the rate of weft's fastest configuration by that of each peer's fastest and default configuration."""
    best = {
        library: max(options, key=lambda name: statistics.median(rates[library, name]))
        for library, options in CONFIGURATIONS.items()
    }
    for library in ("rllib", "sb3"):
        for name in dict.fromkeys((best[library], next(iter(CONFIGURATIONS[library])))):
            yield f"weft, {best['weft']} / {library}, {name}", ratio(rates["weft", best["weft"]], rates[library, name])


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the environment steps per second of training with and without evaluations."""
    options = {"without": (), "with": ("--eval-every", str(EVAL_EVERY))}
    rates: dict[str, list[float]] = {name: [] for name in options}
    for round_ in range(args.rounds):
        for name in options:
            report = train_once("weft", *options[name], seed=round_, iterations=EVAL_ITERATIONS)
            rates[name].append(report["steps_per_s"])
    return {
        "steps_per_s": {name: summary(values) for name, values in rates.items()},
        "with / without": ratio(rates["with"], rates["without"]),
    }


def train_once(library: str, *options: str, seed: int, iterations: int) -> dict[str, Any]:
    """Runs a library's script. Returns the report that it prints."""
    python = sys.executable if library == "weft" else PEERS / "bin" / "python"
    command = [python, HERE / "peers" / f"{library}_ppo.py", *options]
    command += ["--seed", str(seed), "--iterations", str(iterations)]
    completed = subprocess.run(command, capture_output=True, text=True)
    if completed.returncode:
        raise RuntimeError(f"{library} {' '.join(options)} failed:\n{completed.stderr[-4000:]}")
    return json.loads(completed.stdout.splitlines()[-1])


def install_peers(folder: Path = PEERS, requirements: Path = REQUIREMENTS) -> None:
    """Creates the Python environment of the peers, unless it is up to date with `requirements`."""
    stamp = folder / "installed"
    if stamp.exists() and stamp.stat().st_mtime >= requirements.stat().st_mtime:
        return
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", requirements], check=True)
    stamp.touch()


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "train": train,
    "evaluate": evaluate,
    "share": share,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of train and evaluate (default: 5)")
    parser.add_argument("--share-rounds", type=int, default=25, help="rounds of share (default: 25)")
    parser.add_argument("--iterations", type=int, default=48, help="counted iterations of train (default: 48)")
    parser.add_argument("--layout", default="fused", help="layout of share (default: fused)")
    args = parser.parse_args()
    parts = {name: part(args) | {"settings": vars(args)} for name, part in PARTS.items() if args.only in (None, name)}
    results = RESULTS / "envs.json"
    record = json.loads(results.read_text()) if args.only and results.exists() else {}
    # After the parts: they configure XLA before JAX initialises its devices.
    record["platform"] = f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores"
    record["versions"] = {"python": platform.python_version(), "jax": jax.__version__, "gymnasium": gym.__version__}
    record |= parts
    text = "\n".join(table(record)) + "\n"
    sys.stdout.write(text)
    RESULTS.mkdir(exist_ok=True)
    results.write_text(json.dumps(record, indent=2) + "\n")
    (RESULTS / "envs.md").write_text(text)


def table(record: dict[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    yield "<!-- Written by benchmarks/envs.py. -->"
    yield f"{ENVS} environments, {record['platform']}, {versions}."
    yield "Medians (minimum to maximum)."
    if "train" in record:
        yield from train_table(record["train"])
    if "evaluate" in record:
        yield from evaluate_table(record["evaluate"])
    if "share" in record:
        yield from share_table(record["share"])


def train_table(part: dict[str, Any]) -> Iterator[str]:
    settings = part["settings"]
    peers = ", ".join(f"{name} {version}" for name, version in part["versions"].items())
    rounds = f"{settings['rounds']} rounds of {settings['iterations']} iterations"
    yield from ("", f"PPO on Gymnasium's CartPole, {rounds}, compared with {peers}.", "")
    yield from (
        "| library, configuration | steps per second | final return, as reported by the library |",
        "|---|---|---|",
    )
    for name, rate in part["steps_per_s"].items():
        yield f"| {name} | {thousands(rate)} | {spread(part['return_mean'][name])} |"
    yield from ("", "| ratio of steps per second | measured |", "|---|---|")
    for name, values in part["ratios"].items():
        yield f"| {name} | {spread(values)} |"


def evaluate_table(part: dict[str, Any]) -> Iterator[str]:
    settings = part["settings"]
    rounds = f"{settings['rounds']} rounds of {EVAL_ITERATIONS} iterations"
    yield from (
        "",
        f"The same training with weft, {rounds}, with an evaluation of 10 episodes every {EVAL_EVERY:,} steps.",
    )
    yield from ("", "| evaluations | measured |", "|---|---|")
    for name, rate in part["steps_per_s"].items():
        yield f"| {name}, steps per second | {thousands(rate)} |"
    yield f"| with / without | {spread(part['with / without'])} |"


def share_table(part: dict[str, Any]) -> Iterator[str]:
    settings = part["settings"]
    yield ""
    rounds = f"layout {settings['layout']}, {settings['share_rounds']} rounds"
    yield f"Collecting rollouts without learning, {rounds}. Microseconds are per tick,"
    yield "which steps all environments once. A share is the time of the steps divided by the total time."
    yield from ("", "| environment | quantity | measured |", "|---|---|---|")
    for env_id in TICKS:
        for name, us in part[env_id]["us_per_tick"].items():
            yield f"| {env_id} | {name}, microseconds | {spread(us)} |"
        yield f"| {env_id} | share, weft | {spread(part[env_id]['share'])} |"
        yield f"| {env_id} | share, by hand | {spread(part[env_id]['share by hand'])} |"


if __name__ == "__main__":
    main()
