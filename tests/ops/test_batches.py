import jax.numpy as jnp
import numpy as np
import pytest

from weft.errors import WeftError
from weft.ops.batches import batch_shape, fold_time, importance_weights, shuffled, take_rows


def test_each_epoch_is_a_different_permutation_of_all_rows(key):
    orders = shuffled(key, 60, epochs=3, minibatches=4)
    assert orders.shape == (12, 15)
    epochs = np.asarray(orders).reshape(3, 60)
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(60), (3, 1)))
    assert len(np.unique(epochs, axis=0)) == 3 and (epochs != np.arange(60)).any()


def test_rows_that_do_not_divide_into_minibatches_are_refused(key):
    with pytest.raises(WeftError, match="100 rows .* 8 equal minibatches"):
        shuffled(key, 100, epochs=1, minibatches=8)


def test_folding_time_keeps_the_leaves_of_a_row_together():
    tree = {"a": jnp.arange(6).reshape(3, 2), "b": jnp.arange(12).reshape(3, 2, 2) // 2}
    rows = take_rows(fold_time(tree), jnp.array([5, 0]))
    assert rows["a"].tolist() == [5, 0] and rows["b"].tolist() == [[5, 5], [0, 0]]


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
