import jax.numpy as jnp
import numpy as np
import pytest

from weft.errors import WeftError
from weft.ops.batches import batch_shape, importance_weights, in_groups, shuffled, take_items


@pytest.mark.parametrize(("steps", "rows", "minibatches", "groups"), [(8, 6, 4, 6), (6, 8, 4, 4), (1, 8, 4, 2)])
def test_each_epoch_is_a_different_permutation_of_all_items(key, steps, rows, minibatches, groups):
    items = jnp.arange(steps * rows).reshape(steps, rows)
    orders = shuffled(key, items.shape, epochs=3, minibatches=minibatches)
    assert orders.shape == (3 * minibatches, groups, steps * rows // minibatches // groups)
    epochs = np.asarray([take_items(in_groups(items, groups), order) for order in orders]).reshape(3, -1)
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(steps * rows), (3, 1)))
    assert len(np.unique(epochs, axis=0)) == 3 and (epochs != np.arange(steps * rows)).any()


def test_every_minibatch_has_equally_many_items_of_each_group_of_environments(key):
    rows = jnp.broadcast_to(jnp.arange(8), (6, 8))
    for order in shuffled(key, rows.shape, epochs=2, minibatches=4):
        counts = np.bincount(np.asarray(take_items(in_groups(rows, 4), order)) // 2)
        assert counts.tolist() == [3, 3, 3, 3]


def test_items_that_do_not_divide_into_minibatches_are_refused(key):
    with pytest.raises(
        WeftError, match="3 environments of a replica, with 4 items each, .* 8 equal .* a multiple of 2"
    ):
        shuffled(key, (4, 3), epochs=1, minibatches=8)


def test_the_leaves_of_an_item_stay_together():
    tree = {"a": jnp.arange(6).reshape(3, 2), "b": jnp.arange(12).reshape(3, 2, 2) // 2}
    items = take_items(in_groups(tree, 1), jnp.array([[5, 0]]))
    assert items["a"].tolist() == [5, 0] and items["b"].tolist() == [[5, 5], [0, 0]]


@pytest.mark.parametrize(("num_envs", "shape"), [(4, (4, 8)), (2, (2, 8)), (1, (1, 8))])
def test_a_replica_gets_its_share_of_a_batch(num_envs, shape):
    assert batch_shape(32, num_envs=num_envs, total_envs=4) == shape


def test_a_batch_that_is_no_multiple_of_the_environments_has_one_axis():
    assert batch_shape(6, num_envs=4, total_envs=4) == (6,)


def test_a_batch_that_does_not_divide_between_replicas_is_refused():
    with pytest.raises(WeftError, match="batch_size=7 cannot be divided like 4 environments, 2 to a replica"):
        batch_shape(7, num_envs=2, total_envs=4)


def test_importance_weights_are_at_most_1_and_correct_the_bias_fully_for_beta_1():
    probability = jnp.array([0.1, 0.2, 0.4])
    np.testing.assert_allclose(importance_weights(probability, 1.0), [1.0, 0.5, 0.25], rtol=1e-6)
    assert importance_weights(probability, 0.0).tolist() == importance_weights(probability, None).tolist() == [1.0] * 3
