import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from weft.ops.actions import nth, permitted, random_actions


def test_choices_are_counted_among_what_there_is():
    allowed = jnp.array([[True, False, True, False], [False, False, False, True]])
    drawn = [nth(allowed, jnp.full(2, number)).tolist() for number in range(4)]
    assert drawn == [[0, 3], [2, 3], [0, 3], [2, 3]]


def test_what_is_permitted_is_left_alone_where_nothing_is_ruled_out(key):
    space = gym.spaces.Discrete(4)
    drawn = random_actions(space, key, (50,))
    np.testing.assert_array_equal(permitted(space, drawn, None), drawn)
    np.testing.assert_array_equal(permitted(space, drawn, jnp.ones((50, 4), jnp.int8)), drawn)


def test_every_part_of_an_action_keeps_to_its_own_mask(key):
    many, speed = gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Box(-1, 1, (2,))
    space = gym.spaces.Dict(pair=gym.spaces.Tuple((many, speed)), free=gym.spaces.Discrete(4))
    drawn = random_actions(space, key, (500,))
    masks = jnp.tile(jnp.array([0, 1, 1, 0, 1], jnp.int8), (500, 1))
    found = jax.jit(lambda drawn: permitted(space, drawn, {"pair": (masks, None)}))(drawn)
    assert (found["pair"][0][:, 0] == 1).all()
    assert set(found["pair"][0][:, 1].tolist()) == {0, 2}
    np.testing.assert_array_equal(found["pair"][1], drawn["pair"][1])
    np.testing.assert_array_equal(found["free"], drawn["free"])
