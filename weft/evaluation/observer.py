"""Evaluation during training, as an observer of the run.

`EvaluationObserver` asks the run for the state every `state_every` environment steps, evaluates it in another process
(see `weft.evaluation.process`), and passes every update on to other observers with the evaluations that have finished.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax

from weft.algorithm import Algorithm
from weft.envs.timestep import Env
from weft.errors import WeftError
from weft.evaluation.process import EvaluationProcess
from weft.evaluation.trained_params import TrainedParamsSchema
from weft.report.update import Evaluation, Observer, Update


class EvaluationObserver:
    """Evaluates every `every` environment steps and at the end; `observers` get its updates.

    Its process runs while the context is entered. Call `finish` after the run to get the last evaluations.
    """

    def __init__(
        self,
        algo: Algorithm,
        env_of: Callable[[int], Env],
        observers: Sequence[Observer] = (),
        *,
        every: int,
        episodes: int,
    ):
        if every < 1 or episodes < 1:
            raise WeftError(f"eval_every={every} with eval_episodes={episodes}: both must be at least 1")
        self.state_every = every
        self.last_return: float | None = None
        """The mean return of the newest evaluation."""
        self._schema = TrainedParamsSchema(algo, env_of)
        # Rejects an algorithm without a player before training starts, not at the first evaluation.
        jax.eval_shape(lambda net: algo.player(env_of(1), net, greedy=True)[0], self._schema.shapes.net)
        self._start = lambda: EvaluationProcess(algo, env_of, episodes=episodes)
        self._observers = observers
        self._update: Update | None = None
        self._updated_at = 0.0

    def __enter__(self) -> Self:
        self._process = self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.close()

    def __call__(self, update: Update) -> None:
        self._update, self._updated_at = update, time.perf_counter()
        self._pass_on(update, self._process.results())

    def receive_state(self, steps: int, state: Any) -> None:
        """Start to evaluate the state."""
        self._process.submit(steps, self._schema.extract(state))

    def finish(self) -> None:
        """Wait for the evaluations that still run, and pass them on in an update of their own."""
        results = self._process.finish()
        if results and self._update:
            seconds = self._update.seconds + time.perf_counter() - self._updated_at
            late = dataclasses.replace(self._update, seconds=seconds, metrics={}, system=None, total=None)
            self._pass_on(late, results)

    def _pass_on(self, update: Update, evaluations: list[Evaluation]) -> None:
        if evaluations:
            self.last_return = evaluations[-1].return_mean
        update = dataclasses.replace(update, evaluations=tuple(evaluations))
        for observer in self._observers:
            observer(update)
