"""Plays episodes with trained parameters, and returns their returns and lengths.

One environment plays one episode after another, so that short episodes are not counted more often than long ones.
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
from weft.evaluation.trained_params import TrainedParams, TrainedParamsSchema, set_env_statistics
from weft.host import own_objects
from weft.report.update import Evaluation
from weft.runtime.devices import disable_async_cpu_dispatch
from weft.runtime.jit_with_host import jit_with_host

CHUNK = 128
# An evaluation fails after this many steps in which no episode ends.
MAX_STEPS_WITHOUT_END = 1_000_000


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EpisodeState:
    """The state of the environment and the policy between two steps."""

    env: Any
    obs: Any
    memory: Any
    start: jax.Array
    """Whether an episode starts with this step."""
    key: jax.Array


class Evaluator:
    """Plays episodes with an algorithm's policy. Compiled once, for any parameters of that algorithm.

    Steps run in chunks of `chunk`. After each chunk `on_chunk` gets the new state, and `record` the steps of the chunk,
    leaves [chunk, ...], up to the end of the last episode.
    """

    def __init__(
        self,
        algo: Algorithm,
        env_of: Callable[[int], Env],
        *,
        greedy: bool = True,
        chunk: int = CHUNK,
        on_chunk: Callable[[EpisodeState], None] = lambda state: None,
        record: Callable[[dict[str, Any]], None] | None = None,
    ):
        disable_async_cpu_dispatch()
        self.algo, self.env, self.greedy = algo, env_of(1), greedy
        self.chunk, self.on_chunk, self.record = chunk, on_chunk, record
        self.schema = TrainedParamsSchema(algo, env_of)
        shapes, key = self.schema.shapes, jax.eval_shape(lambda: jax.random.key(0))
        self.start = jit_with_host(self._start, shapes, key)
        self.play_chunk = jit_with_host(self._play_chunk, shapes, jax.eval_shape(self._start, shapes, key))

    def __call__(self, params: TrainedParams, *, episodes: int, seed: int = 0, steps: int = 0) -> Evaluation:
        """Play until `episodes` have ended. `steps` is how long `params` were trained, for the result."""
        finished: list[tuple[float, float]] = []
        steps_without_end = 0
        with own_objects():
            state = self.start(params, jax.random.key(seed))
            self.on_chunk(state)
            while len(finished) < episodes:
                state, (returns, lengths, counts, recorded) = self.play_chunk(params, state)
                ended = np.asarray(counts) > 0
                if self.record:
                    self.record(_until(recorded, ended, episodes - len(finished)))
                finished += zip(np.asarray(returns)[ended].tolist(), np.asarray(lengths)[ended].tolist(), strict=True)
                steps_without_end = 0 if ended.any() else steps_without_end + self.chunk
                if steps_without_end >= MAX_STEPS_WITHOUT_END:
                    raise WeftError(
                        f"no episode ended in {steps_without_end:,} steps of evaluation: limit their length with "
                        "--wrap time_limit=N"
                    )
                self.on_chunk(state)
        returns, lengths = zip(*finished[:episodes], strict=True)
        return Evaluation(steps, returns, lengths)

    def _start(self, params: TrainedParams, key: jax.Array) -> EpisodeState:
        key_env, key = jax.random.split(key)
        state, obs = reset_with_statistics(self.env, key_env, params.env_statistics)
        memory, _ = self.algo.player(self.env, params.net, greedy=self.greedy)
        return EpisodeState(state, obs, memory, jnp.ones(1, bool), key)

    def _play_chunk(self, params: TrainedParams, state: EpisodeState) -> tuple[EpisodeState, Any]:
        _, act = self.algo.player(self.env, params.net, greedy=self.greedy)

        def step(state: EpisodeState, _: None) -> tuple[EpisodeState, Any]:
            key, key_act, key_env = jax.random.split(state.key, 3)
            memory, action = act(state.memory, state.obs, state.start, key_act)
            env, ts = self.env.step(state.env, action, key_env)
            env, metrics = self.env.episodes(env)
            returns, lengths = metrics["episode_return"], metrics["episode_length"]
            # An autoreset that takes a step of its own marks that step invalid: an episode starts after it.
            start = ts.terminated | ts.truncated | ~ts.valid
            env = set_env_statistics(env, params.env_statistics)
            recorded = self._recorded_step(state.obs, action, ts)
            next_state = EpisodeState(env, ts.obs, memory, start, key)
            return next_state, (returns.total, lengths.total, returns.count, recorded)

        return jax.lax.scan(step, state, length=self.chunk)

    def _recorded_step(self, obs: Any, action: Any, ts: TimeStep) -> dict[str, Any]:
        if self.record is None:
            return {}
        names = ("reward", "terminated", "truncated", "final_obs", "valid")
        step = {"obs": obs, "action": action, **{name: getattr(ts, name) for name in names}}
        return jax.tree.map(lambda leaf: leaf[0], step)


def _until(steps: dict[str, Any], ended: np.ndarray, episodes: int) -> dict[str, Any]:
    """The valid steps up to the end of the given number of episodes."""
    ends = np.flatnonzero(ended)
    stop = ends[episodes - 1] + 1 if len(ends) >= episodes else len(ended)
    valid = np.asarray(steps["valid"])[:stop]
    return jax.tree.map(
        lambda leaf: np.asarray(leaf)[:stop][valid], {name: leaf for name, leaf in steps.items() if name != "valid"}
    )
