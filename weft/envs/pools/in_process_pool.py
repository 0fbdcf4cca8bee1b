"""A pool of Gymnasium environments in this very process: no exchange, hence the least cost for quick environments.

An environment that hangs cannot be interrupted here, so it ends the run; `overdue` says which one it is. A pool of
worker processes can kill it and go on.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from weft.envs.pools.arrays import Actions
from weft.envs.pools.episode_statistics import Tally
from weft.envs.pools.failures import failed
from weft.envs.pools.nested import fields, flatten, unflatten
from weft.envs.pools.pool import Stepped, Totals
from weft.envs.pools.sequential import Block, Broken, End

log = logging.getLogger(__name__)


class InProcess:
    """Environments stepped one after another."""

    kind = "inprocess"

    def __init__(
        self,
        name: str,
        make: Callable[[], gym.Env],
        *,
        observation_space: gym.Space,
        action_space: gym.Space,
        indices: Sequence[int],
        seeds: Sequence[int],
        masked: bool = False,
        restart: bool = False,
        timeout: float = 60.0,
    ) -> None:
        self._name, self._indices, self._timeout = name, list(indices), timeout
        self._since: float | None = None
        self._spaces = observation_space, action_space
        self._fields = fields(observation_space, masked=masked)
        self._block = Block(make, seeds, fields=self._fields, actions=Actions(action_space), restart=restart)
        self._tally = Tally(len(seeds))
        self._none, self._all = frozen(np.zeros(len(seeds), bool)), frozen(np.ones(len(seeds), bool))

    def reset(self) -> Any:
        out = self._fields.empty(len(self._indices))
        try:
            self._block.reset(out)
        except Broken as broken:
            raise self._failed(broken) from broken.__cause__
        return unflatten(self._spaces[0], out)

    def step(self, action: Any, last: np.ndarray | None) -> Stepped:
        out = self._fields.empty(len(self._indices))
        self._since = time.monotonic()
        try:
            reward, ends = self._block.step(flatten(self._spaces[1], action), last, out)
        except Broken as broken:
            raise self._failed(broken) from broken.__cause__
        self._since = None
        self._tally.add(reward)
        if ends:
            return self._ended(out, reward, ends)
        obs = unflatten(self._spaces[0], out)
        return Stepped(obs, reward.astype(np.float32), self._none, self._none, obs, self._all)

    def episodes(self) -> Totals:
        return self._tally.take()

    def close(self) -> None:
        self._block.close()

    def overdue(self) -> Exception | None:
        """The error for the environment that is being stepped, if it has been for too long; asked by another thread."""
        since = self._since
        if since is None or time.monotonic() - since < self._timeout:
            return None
        return self._failed(self._block.stuck(f"no answer for {self._timeout:g} s; vector=workers can restart it"))

    def picture(self) -> np.ndarray | None:
        """What the first environment shows, if it shows anything."""
        return self._block.picture()

    def _ended(self, out: list[np.ndarray], reward: np.ndarray, ends: list[End]) -> Stepped:
        final = [array.copy() for array in out]
        terminated, truncated, valid = self._none.copy(), self._none.copy(), self._all.copy()
        for end in ends:
            for array, row in zip(final, end.final, strict=True):
                array[end.row] = row
            terminated[end.row], truncated[end.row], valid[end.row] = end.terminated, end.truncated, not end.broken
            (self._tally.drop if end.broken else self._tally.finish)(end.row)
            if end.broken:
                log.warning("%s; it was started again", self._failed(end.broken))
        obs, final_obs = unflatten(self._spaces[0], out), unflatten(self._spaces[0], final)
        return Stepped(obs, reward.astype(np.float32), terminated, truncated, final_obs, valid)

    def _failed(self, broken: Broken) -> Exception:
        return failed(
            self._name,
            self._indices[broken.row],
            seed=broken.seed,
            reason=broken.reason,
            steps=broken.steps,
            episode_steps=broken.episode_steps,
        )


def frozen(array: np.ndarray) -> np.ndarray:
    """The array itself, for ever as it is: it can be handed out again and again."""
    array.flags.writeable = False
    return array
