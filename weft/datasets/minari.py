"""Reads the datasets of Minari, the Farama Foundation's collection (https://minari.farama.org), which include D4RL's.

The package `minari` reads them from its own folder, where `minari download D4RL/door/human-v2` puts them. An episode
that neither terminated nor was truncated is read as truncated at its last step.
"""

from typing import Any

import jax
import numpy as np

from weft.datasets.dataset import Dataset, Source
from weft.envs.spaces import shapes
from weft.errors import WeftError


def describe(name: str) -> tuple[Source, int]:
    """The environment of a dataset and its number of steps."""
    dataset = _load(name)
    return _source(dataset), int(dataset.total_steps)


def read(name: str) -> Dataset:
    """The whole dataset."""
    dataset = _load(name)
    source = _source(dataset)
    episodes = [_episode(source, episode) for episode in dataset.iterate_episodes() if len(episode)]
    if not episodes:
        raise WeftError(f"the dataset {name} has no steps")
    return Dataset(source, jax.tree.map(lambda *parts: np.concatenate(parts), *episodes))


def _episode(source: Source, episode: Any) -> dict[str, Any]:
    obs = jax.tree.map(_convert, episode.observations, shapes(source.observation_space, 0))
    action = jax.tree.map(_convert, episode.actions, shapes(source.action_space, 0))
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


def _convert(values: Any, like: jax.ShapeDtypeStruct) -> np.ndarray:
    array = np.asarray(values)
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
        raise WeftError(f"minari:{name} cannot be read: {error} (`minari download {name}` downloads it)") from None
