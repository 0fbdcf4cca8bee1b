"""Hypothesis strategies for spaces, and batches of their elements."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from weft.envs.spaces import dtype, map_space

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=3)
BOXES = st.tuples(SHAPES, st.sampled_from([np.float32, np.float64, np.uint8, np.int64])).map(
    lambda pair: gym.spaces.Box(0, 5, pair[0], pair[1])
)
LEAVES = st.one_of(
    BOXES,
    st.tuples(st.integers(1, 5), st.integers(-2, 2)).map(lambda pair: gym.spaces.Discrete(pair[0], start=pair[1])),
    COUNTS.map(gym.spaces.MultiDiscrete),
    COUNTS.map(lambda counts: gym.spaces.MultiDiscrete([counts, counts])),
    st.integers(1, 4).map(gym.spaces.MultiBinary),
)
SPACES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.lists(parts, min_size=1, max_size=3).map(gym.spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), parts, min_size=1, max_size=3).map(gym.spaces.Dict),
    ),
    max_leaves=4,
)


def batch(space, *shape):
    """Returns random elements with leading axes `shape`, with the dtypes that environments use."""

    def leaf(part):
        part.seed(0)
        rows = np.stack([part.sample() for _ in range(int(np.prod(shape)))])
        return jnp.asarray(rows.reshape((*shape, *part.shape)).astype(dtype(part)))

    return map_space(leaf, space)


def shapes(tree):
    return jax.tree.map(lambda x: x.shape, tree)
