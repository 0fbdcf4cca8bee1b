import json

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import WeftError
from weft.envs.space_json import space_from_json, space_to_json

BOUNDS = st.sampled_from([-np.inf, -3.5, -1.0])
LEAVES = st.one_of(
    st.builds(lambda low, n: gym.spaces.Box(low, 2.0, (n, 2), np.float32), BOUNDS, st.integers(1, 3)),
    st.builds(lambda low: gym.spaces.Box(np.array([low, 0]), np.array([1, np.inf]), dtype=np.float64), BOUNDS),
    st.just(gym.spaces.Box(0, 255, (2, 2), np.uint8)),
    st.builds(lambda n, start: gym.spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-2, 2)),
    st.builds(gym.spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=3)),
    st.builds(gym.spaces.MultiBinary, st.integers(1, 4)),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(gym.spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(gym.spaces.Tuple),
    ),
    max_leaves=5,
)


@given(SPACES)
def test_a_space_survives_a_round_trip_through_json(space: gym.Space) -> None:
    text = json.dumps(space_to_json(space), allow_nan=False)
    assert space_from_json(json.loads(text)) == space


def test_unsupported_spaces_are_rejected() -> None:
    with pytest.raises(WeftError, match="a Text space cannot be written as JSON"):
        space_to_json(gym.spaces.Dict(a=gym.spaces.Text(3)))
    with pytest.raises(WeftError, match="describes no space"):
        space_from_json({"kind": "Text"})
