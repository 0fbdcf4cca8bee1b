"""Playing episodes with what was learned: how good is this policy, by itself, without exploring?

One environment plays one episode after another, so that every episode counts, long or short.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weft.algorithm import Algorithm
from weft.envs.timestep import Env, TimeStep
from weft.envs.wrappers import reset_with_statistics
from weft.errors import WeftError
from weft.evaluation.learned import Learned, Learning, teach
from weft.host import own_objects
from weft.report.update import Evaluation
from weft.runtime.devices import disable_async_cpu_dispatch
from weft.runtime.jit_with_host import jit_with_host

CHUNK = 128
# Steps without the end of an episode after which it is taken to have none.
ENDLESS = 1_000_000


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Playing:
    """An episode under way."""

    env: Any
    obs: Any
    memory: Any
    start: jax.Array
    key: jax.Array


class Evaluator:
    """Plays with any network of one algorithm: compiled once, called as often as wanted.

    `chunk` steps are played between two looks at what came of them; `watch` is called after each, and `record` with the
    steps themselves, leaves [chunk, ...], up to the end of the last episode.
    """

    def __init__(
        self,
        algo: Algorithm,
        env_of: Callable[[int], Env],
        *,
        greedy: bool = True,
        chunk: int = CHUNK,
        watch: Callable[[Playing], None] = lambda playing: None,
        record: Callable[[dict[str, Any]], None] | None = None,
    ):
        disable_async_cpu_dispatch()
        self.algo, self.env, self.greedy = algo, env_of(1), greedy
        self.chunk, self.watch, self.record = chunk, watch, record
        self.learning = Learning(algo, env_of)
        like, key = self.learning.shapes, jax.eval_shape(lambda: jax.random.key(0))
        self.begin = jit_with_host(self._begin, like, key)
        self.go = jit_with_host(self._go, like, jax.eval_shape(self._begin, like, key))

    def __call__(self, what: Learned, *, episodes: int, seed: int = 0, steps: int = 0) -> Evaluation:
        """Play until `episodes` have ended, with what was learned in so many `steps`."""
        ends: list[tuple[float, float]] = []
        endless = 0
        with own_objects():
            playing = self.begin(what, jax.random.key(seed))
            self.watch(playing)
            while len(ends) < episodes:
                playing, (returns, lengths, counts, seen) = self.go(what, playing)
                found = np.asarray(counts) > 0
                if self.record:
                    self.record(_until(seen, found, episodes - len(ends)))
                ends += zip(np.asarray(returns)[found].tolist(), np.asarray(lengths)[found].tolist(), strict=True)
                endless = 0 if found.any() else endless + self.chunk
                if endless >= ENDLESS:
                    raise WeftError(
                        f"no episode ended in {endless:,} steps of evaluation: limit them with --wrap time_limit=N"
                    )
                self.watch(playing)
        returns, lengths = zip(*ends[:episodes], strict=True)
        return Evaluation(steps, returns, lengths)

    def _begin(self, what: Learned, key: jax.Array) -> Playing:
        key_env, key = jax.random.split(key)
        state, obs = reset_with_statistics(self.env, key_env, what.env)
        memory, _ = self.algo.player(self.env, what.net, greedy=self.greedy)
        return Playing(state, obs, memory, jnp.ones(1, bool), key)

    def _go(self, what: Learned, playing: Playing) -> tuple[Playing, Any]:
        _, act = self.algo.player(self.env, what.net, greedy=self.greedy)

        def tick(now: Playing, _: None) -> tuple[Playing, Any]:
            key, key_act, key_env = jax.random.split(now.key, 3)
            memory, action = act(now.memory, now.obs, now.start, key_act)
            state, ts = self.env.step(now.env, action, key_env)
            state, metrics = self.env.episodes(state)
            ended = metrics["episode_return"], metrics["episode_length"]
            # After a row that an autoreset inserted there is a new episode too.
            start = ts.terminated | ts.truncated | ~ts.valid
            after = Playing(teach(state, what.env), ts.obs, memory, start, key)
            return after, (ended[0].total, ended[1].total, ended[0].count, self._step(now.obs, action, ts))

        return jax.lax.scan(tick, playing, length=self.chunk)

    def _step(self, obs: Any, action: Any, ts: TimeStep) -> dict[str, Any]:
        """What is recorded of a step, if anything is."""
        if self.record is None:
            return {}
        names = ("reward", "terminated", "truncated", "final_obs", "valid")
        step = {"obs": obs, "action": action, **{name: getattr(ts, name) for name in names}}
        return jax.tree.map(lambda leaf: leaf[0], step)


def _until(steps: dict[str, Any], ended: np.ndarray, episodes: int) -> dict[str, Any]:
    """The steps up to the end of so many episodes, without rows that an autoreset inserted."""
    ends = np.flatnonzero(ended)
    stop = ends[episodes - 1] + 1 if len(ends) >= episodes else len(ended)
    wanted = np.asarray(steps["valid"])[:stop]
    return jax.tree.map(
        lambda leaf: np.asarray(leaf)[:stop][wanted], {name: leaf for name, leaf in steps.items() if name != "valid"}
    )
