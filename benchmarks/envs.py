"""How fast environments in plain Python go: training beside other libraries, and what collecting adds to stepping.

    python benchmarks/envs.py                       # everything: benchmarks/results/envs.{md,json}
    python benchmarks/envs.py --only share          # one part; the results keep what they say of the others

`train` is PPO on Gymnasium's CartPole beside RLlib and Stable-Baselines3, each in a process of its own and in several
arrangements; the peers are installed into `benchmarks/.peers` when first needed. `evaluate` is weft's training with and
without evaluations beside it. `share` is the time that environments take to step by themselves over the time that a
program takes which acts, steps them and keeps what it saw.

Every contender runs in every round, in turn; a ratio is taken within a round, and its median over the rounds is
reported with the smallest and the largest. Start-up and compilation are not counted.
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

from weft import envs
from weft.algorithm import Algorithm
from weft.envs.adapters.gymnasium_constructor import from_id
from weft.envs.timestep import Env
from weft.fragments import fragment
from weft.metrics import Mean
from weft.nets.actor_critic import ActorCritic
from weft.ops.distributions import Distribution, draw_noise
from weft.ops.rollout import Place, Transition, rollout
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
# Steps of all environments in one piece. Pieces are short and many, so that other load falls on all of them alike.
TICKS = {"CartPole-v1": 640, "HalfCheetah-v5": 256}

# By library, what it may be told; the first is how it comes. The best of each is compared with the best of the others.
ARRANGEMENTS = {
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
    """The state of a program that only collects."""

    net: ActorCritic
    here: Place
    trajectory: Transition
    key: jax.Array


@dataclass(frozen=True, kw_only=True)
class Collect(Algorithm):
    """Acts and steps and keeps the last rollout, so that all of it has to be made; learns nothing."""

    def init(self, env: Env, key: jax.Array) -> Collected:
        key_net, key_env, key = jax.random.split(key, 3)
        spaces = env.observation_space, env.action_space
        net = ActorCritic(*spaces, hidden=(64, 64), activation="tanh", shared=False, key=key_net)
        here = Place(*env.reset(key_env))
        _, shapes = jax.eval_shape(partial(self.collect, env), net, here, key)
        return Collected(net, here, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), key)

    def step(self, env: Env, state: Collected) -> tuple[Collected, dict[str, Mean]]:
        key, key_collect = jax.random.split(state.key)
        here, trajectory = self.collect(env, state.net, state.here, key_collect)
        env_state, metrics = env.episodes(here.env)
        return Collected(state.net, replace(here, env=env_state), trajectory, key), metrics

    def collect(self, env: Env, net: ActorCritic, here: Place, key: jax.Array) -> tuple[Place, Transition]:
        key_act, key_env = jax.random.split(key)
        noise = self.noise(env, key_act)
        return rollout(env, partial(self.act, net), here, noise=noise, key=key_env, length=HORIZON)

    @fragment(name="act.noise")
    def noise(self, env: Env, key: jax.Array) -> jax.Array:
        return draw_noise(env.action_space, key, (HORIZON, env.num_envs))

    @fragment
    def act(self, net: ActorCritic, obs: Any, memory: Any, noise: jax.Array) -> tuple[jax.Array, Distribution, Any]:
        policy = net.policy(obs)
        return policy.sample(noise), policy, memory


class Collecting:
    """weft's collection, compiled once and run again and again."""

    def __init__(self, env_id: str, layout: str) -> None:
        in_process = partial(envs.make, f"gym:{env_id}", vector="inprocess")
        plan = Plan.of(Collect(num_envs=ENVS), in_process, layout)
        self.engine, self.state = LocalEngine(plan.project()), plan.init(0)

    def go(self, ticks: int) -> float:
        """Seconds for so many steps of all environments."""
        started = time.perf_counter()
        self.state = jax.block_until_ready(self.engine.run(self.state, ticks // HORIZON))
        return time.perf_counter() - started

    def actions(self, ticks: int) -> np.ndarray:
        """The actions of the last rollout, over and over."""
        return np.resize(np.asarray(self.state.trajectory.action), (ticks, *self.state.trajectory.action.shape[1:]))


class Bare:
    """The environments themselves, stepped in the plainest loops."""

    def __init__(self, env_id: str, net: ActorCritic) -> None:
        # Made just as weft makes them: it leaves out Gymnasium's checks of every call.
        self.envs = [from_id(env_id, {}).factory()() for _ in range(ENVS)]
        self.space = self.envs[0].action_space
        self.obs = np.stack([env.reset(seed=seed)[0] for seed, env in enumerate(self.envs)]).astype(np.float32)
        self.act = jax.jit(lambda obs, noise: Collect().act(net, obs, (), noise))

    def steps(self, actions: np.ndarray) -> tuple[float, float]:
        """Seconds in `step` alone for given actions, and in the whole loop with the resets of what ended."""
        rows = [self.given(each) for each in actions]
        clock = time.perf_counter
        stepping, started = 0.0, clock()
        for row in rows:
            before = clock()
            stepped = [env.step(action) for env, action in zip(self.envs, row, strict=True)]
            stepping += clock() - before
            for env, (_, _, terminated, truncated, _) in zip(self.envs, stepped, strict=True):
                if terminated or truncated:
                    env.reset()
        return stepping, clock() - started

    def by_hand(self, noise: jax.Array) -> float:
        """Seconds of a loop that acts, steps and remembers, with nothing of weft around it."""
        started = time.perf_counter()
        seen = []
        for noise_t in np.asarray(noise):
            action, policy, _ = self.act(self.obs, noise_t)
            row = self.given(np.asarray(action))
            stepped = [env.step(action) for env, action in zip(self.envs, row, strict=True)]
            obs, reward, terminated, truncated, _ = zip(*stepped, strict=True)
            final_obs = np.array(obs, np.float32)
            seen.append((self.obs, action, policy, np.array(reward), terminated, truncated, final_obs))
            self.obs = self.restarted(final_obs, [a or b for a, b in zip(terminated, truncated, strict=True)])
        return time.perf_counter() - started

    def restarted(self, obs: np.ndarray, ended: list[bool]) -> np.ndarray:
        if not any(ended):
            return obs
        obs = obs.copy()
        for row in np.flatnonzero(ended):
            obs[row] = self.envs[row].reset()[0]
        return obs

    def given(self, actions: np.ndarray) -> list[Any]:
        """One action for each environment, as it likes them best."""
        if isinstance(self.space, gym.spaces.Box):
            return list(np.clip(actions, self.space.low, self.space.high))
        return actions.tolist()


def share(args: argparse.Namespace) -> dict[str, Any]:
    """By environment: microseconds for one step of all of them, bare and collected, and the first over the second."""
    with quiet_mujoco():
        return {env_id: share_of(env_id, ticks, args) for env_id, ticks in TICKS.items()}


def share_of(env_id: str, ticks: int, args: argparse.Namespace) -> dict[str, Any]:
    collecting = Collecting(env_id, args.layout)
    bare = Bare(env_id, collecting.state.net)
    noise = draw_noise(bare.space, jax.random.key(0), (ticks, ENVS))
    us: dict[str, list[float]] = {"steps": [], "steps and resets": [], "by hand": [], "weft": []}
    for piece in range(args.pieces + 1):
        weft = collecting.go(ticks)
        seconds = (*bare.steps(collecting.actions(ticks)), bare.by_hand(noise), weft)
        if piece:
            for name, each in zip(us, seconds, strict=True):
                us[name].append(1e6 * each / ticks)
    return {
        "us_per_tick": {name: summary(each) for name, each in us.items()},
        "share": ratio(us["steps"], us["weft"]),
        "share by hand": ratio(us["steps"], us["by hand"]),
    }


@contextmanager
def quiet_mujoco() -> Iterator[None]:
    """In a folder of its own: MuJoCo leaves its log wherever it is started."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Environment steps per second while training, of every arrangement, and the best ones beside each other."""
    install_peers()
    rates: Rates = {(library, name): [] for library, ways in ARRANGEMENTS.items() for name in ways}
    returns: Rates = {key: [] for key in rates}
    versions: dict[str, str] = {}
    for round_ in range(args.rounds):
        for library, name in rates:
            options = {"seed": round_, "iterations": args.iterations}
            found = train_once(library, *ARRANGEMENTS[library][name], **options)
            rates[library, name].append(found["steps_per_s"])
            returns[library, name].append(found["return_mean"])
            versions |= found["versions"] if library != "weft" else {}
            print(f"{round_} {library}, {name}: {found['steps_per_s']:,.0f} steps/s", file=sys.stderr, flush=True)
    return {
        "versions": versions,
        "steps_per_s": {f"{library}, {name}": summary(each) for (library, name), each in rates.items()},
        "return_mean": {f"{library}, {name}": summary(each) for (library, name), each in returns.items()},
        "ratios": dict(beside(rates)),
    }


def beside(rates: Rates) -> Iterator[tuple[str, dict[str, float]]]:
    """weft's best arrangement over each peer's best, and over the peer as it comes."""
    best = {
        library: max(ways, key=lambda name: statistics.median(rates[library, name]))
        for library, ways in ARRANGEMENTS.items()
    }
    for library in ("rllib", "sb3"):
        for name in dict.fromkeys((best[library], next(iter(ARRANGEMENTS[library])))):
            found = ratio(rates["weft", best["weft"]], rates[library, name])
            yield f"weft, {best['weft']} / {library}, {name}", found


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Environment steps per second of training with evaluations beside it, and without."""
    ways = {"without": (), "with": ("--eval-every", str(EVAL_EVERY))}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(args.rounds):
        for name, options in ways.items():
            found = train_once("weft", *options, seed=round_, iterations=EVAL_ITERATIONS)
            rates[name].append(found["steps_per_s"])
    return {
        "steps_per_s": {name: summary(each) for name, each in rates.items()},
        "with / without": ratio(rates["with"], rates["without"]),
    }


def train_once(library: str, *options: str, seed: int, iterations: int) -> dict[str, Any]:
    """What one process reports of one training run."""
    python = sys.executable if library == "weft" else PEERS / "bin" / "python"
    command = [python, HERE / "peers" / f"{library}_ppo.py", *options]
    command += ["--seed", str(seed), "--iterations", str(iterations)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{library} {' '.join(options)} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def install_peers(folder: Path = PEERS, requirements: Path = REQUIREMENTS) -> None:
    """Make the environment that peers run in, unless it is there."""
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
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--rounds", type=int, default=5, help="of training")
    parser.add_argument("--pieces", type=int, default=25, help="rounds of collecting")
    parser.add_argument("--iterations", type=int, default=48, help="of training that are counted, in one round")
    parser.add_argument("--layout", default="fused", help="of what only collects")
    args = parser.parse_args()
    found = {name: part(args) | {"settings": vars(args)} for name, part in PARTS.items() if args.only in (None, name)}
    kept = RESULTS / "envs.json"
    record = (
        (json.loads(kept.read_text()) if args.only and kept.exists() else {})
        | {
            # Asked for last: how weft runs small programs is settled when JAX first meets its devices.
            "platform": f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores",
            "versions": {"python": platform.python_version(), "jax": jax.__version__, "gymnasium": gym.__version__},
        }
        | found
    )
    text = "\n".join(table(record)) + "\n"
    sys.stdout.write(text)
    RESULTS.mkdir(exist_ok=True)
    kept.write_text(json.dumps(record, indent=2) + "\n")
    (RESULTS / "envs.md").write_text(text)


def table(record: dict[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    yield "<!-- Written by benchmarks/envs.py. -->"
    yield f"{ENVS} environments, {record['platform']}, {versions}:"
    yield "medians (least to most)."
    if "train" in record:
        yield from train_table(record["train"])
    if "evaluate" in record:
        yield from evaluate_table(record["evaluate"])
    if "share" in record:
        yield from share_table(record["share"])


def train_table(found: dict[str, Any]) -> Iterator[str]:
    settings = found["settings"]
    peers = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    rounds = f"{settings['rounds']} rounds of {settings['iterations']} iterations"
    yield from ("", f"PPO on Gymnasium's CartPole, {rounds}, beside {peers}.", "")
    yield from ("| trained by | steps per second | return at the end, as each reports it |", "|---|---|---|")
    for name, rate in found["steps_per_s"].items():
        yield f"| {name} | {thousands(rate)} | {spread(found['return_mean'][name])} |"
    yield from ("", "| ratio | measured |", "|---|---|")
    for name, ratio in found["ratios"].items():
        yield f"| {name} | {spread(ratio)} |"


def evaluate_table(found: dict[str, Any]) -> Iterator[str]:
    settings = found["settings"]
    rounds = f"{settings['rounds']} rounds of {EVAL_ITERATIONS} iterations"
    yield from ("", f"The same training by weft, {rounds}, with 10 episodes played every {EVAL_EVERY:,} steps.", "")
    yield from ("| evaluation | measured |", "|---|---|")
    for name, rate in found["steps_per_s"].items():
        yield f"| {name}, steps per second | {thousands(rate)} |"
    yield f"| with / without | {spread(found['with / without'])} |"


def share_table(found: dict[str, Any]) -> Iterator[str]:
    settings = found["settings"]
    pieces = f"layout {settings['layout']}, {settings['pieces']} rounds"
    yield from ("", f"Acting and stepping without learning, {pieces}; microseconds are for one step of all")
    yield from ("environments, and a share is the steps' own time over the whole.", "")
    yield from ("| environment | what | measured |", "|---|---|---|")
    for env_id, each in ((env_id, found[env_id]) for env_id in TICKS):
        for name, us in each["us_per_tick"].items():
            yield f"| {env_id} | {name}, microseconds | {spread(us)} |"
        for name in ("share", "share by hand"):
            yield f"| {env_id} | {name} | {spread(each[name])} |"


def ratio(one: list[float], other: list[float]) -> dict[str, float]:
    return summary([a / b for a, b in zip(one, other, strict=True)])


def summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def spread(found: dict[str, float]) -> str:
    return f"{found['median']:.3g} ({found['least']:.3g} to {found['most']:.3g})"


def thousands(found: dict[str, float]) -> str:
    return f"{found['median']:,.0f} ({found['least']:,.0f} to {found['most']:,.0f})"


if __name__ == "__main__":
    main()
