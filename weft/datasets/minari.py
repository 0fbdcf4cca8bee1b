"""Datasets of Minari's: the collection of the Farama Foundation (https://minari.farama.org), D4RL's among them.

They are read through the package `minari`, from where it keeps them: `minari download D4RL/door/human-v2` brings one
there. An episode of theirs that neither terminated nor was truncated counts as truncated at its last step.
"""

from typing import Any

import jax
import numpy as np

from weft.datasets.dataset import Dataset, Source
from weft.envs.spaces import shapes
from weft.errors import WeftError


def look(name: str) -> tuple[Source, int]:
    """What a dataset was played on, and how many steps it has."""
    dataset = _load(name)
    return _source(dataset), int(dataset.total_steps)


def read(name: str) -> Dataset:
    """All of a dataset."""
    dataset = _load(name)
    source = _source(dataset)
    episodes = [_episode(source, episode) for episode in dataset.iterate_episodes() if len(episode)]
    if not episodes:
        raise WeftError(f"the dataset {name} has no steps")
    return Dataset(source, jax.tree.map(lambda *parts: np.concatenate(parts), *episodes))


def _episode(source: Source, episode: Any) -> dict[str, Any]:
    obs = jax.tree.map(_narrow, episode.observations, shapes(source.observation_space, 0))
    action = jax.tree.map(_narrow, episode.actions, shapes(source.action_space, 0))
    terminated = np.asarray(episode.terminations, bool)
    truncated = np.asarray(episode.truncations, bool) & ~terminated
    truncated[-1] |= not terminated[-1]
    return {
        "obs": jax.tree.map(lambda x: x[:-1], obs),
        "action": action,
        "reward": np.asarray(episode.rewards, np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "final_obs": jax.tree.map(lambda x: x[1:], obs),
    }


def _narrow(given: Any, like: jax.ShapeDtypeStruct) -> np.ndarray:
    array = np.asarray(given)
    return array.astype(like.dtype, copy=False).reshape(len(array), *like.shape[1:])


def _source(dataset: Any) -> Source:
    env = dataset.env_spec.id if dataset.env_spec is not None else dataset.spec.dataset_id
    return Source(env, dataset.observation_space, dataset.action_space)


def _load(name: str) -> Any:
    try:
        import minari
    except ModuleNotFoundError:
        raise WeftError("Minari's datasets need another package: pip install 'weft[offline]'") from None
    try:
        return minari.load_dataset(name)
    except (FileNotFoundError, ValueError) as error:
        raise WeftError(f"minari:{name} cannot be read: {error} (`minari download {name}` brings it here)") from None
