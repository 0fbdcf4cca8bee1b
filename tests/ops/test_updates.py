from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from weft.metrics import Mean
from weft.ops.updates import (
    LearnerState,
    actor_critic_adam,
    learn_from_table,
    scale_by_adam_or_rmsprop,
    update_target,
)
from weft.replay.interface import Batch


@pytest.fixture
def standard_promotion():
    """Adam's bias correction promotes types implicitly."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Nets:
    actor: jax.Array
    critics: jax.Array


class CountingTable:
    """A table: its state counts the samples and sums the priorities."""

    def sample(self, state: Any, key: jax.Array, shape: tuple[int, ...]) -> tuple[Any, Batch]:
        del key
        samples, priorities = state
        ones = jnp.ones(shape)
        return (samples + 1, priorities), Batch(ones[None], jnp.zeros(shape, jnp.int32), ones, jnp.float32(1))

    def update(self, state: Any, key: jax.Array, priority: jax.Array) -> Any:
        del key
        return state[0], state[1] + priority.sum()


def learn(learner: LearnerState, batch: Batch, key: jax.Array) -> tuple[LearnerState, jax.Array, dict[str, Mean]]:
    del key
    learner = learner.apply(jnp.float32(1), optax.sgd(0.5), tau=1.0, target_period=2)
    return learner, 2.0 * batch.probability, {"loss": Mean.of(jnp.float32(3))}


@pytest.mark.parametrize("prioritised", [True, False])
def test_every_update_samples_learns_and_sets_priorities(prioritised, key):
    learner = LearnerState.start(jnp.float32(0), optax.sgd(0.5))
    replay = jnp.int32(0), jnp.float32(0)
    settings: dict[str, Any] = {"updates": 3, "shape": (4,), "prioritised": prioritised}
    table: Any = CountingTable()
    learner, (samples, priorities), metrics = learn_from_table(table, learn, learner, replay, key, **settings)
    assert (int(learner.updates), int(samples), float(priorities)) == (3, 3, 24.0 if prioritised else 0.0)
    assert (float(learner.net), float(learner.target)) == (-1.5, -1.0)
    assert (float(metrics["loss"].total), float(metrics["loss"].count)) == (9.0, 3.0)


def test_a_target_network_moves_by_tau_once_in_every_period():
    old, net = jnp.float32(1), jnp.float32(3)
    targets = [float(update_target(old, net, tau=0.25, period=3, updates=jnp.int32(n))) for n in (1, 2, 3)]
    assert targets == [1.0, 1.0, 1.5]


@pytest.mark.usefixtures("standard_promotion")
def test_the_actor_has_its_own_step_size_and_delay():
    optimiser = actor_critic_adam(lr=0.1, actor_lr=0.01, max_grad_norm=1e9, policy_delay=2)
    learner = LearnerState.start(Nets(jnp.float32(0), jnp.float32(0)), optimiser)
    steps = []
    for _ in range(4):
        learner = learner.apply(Nets(jnp.float32(1), jnp.float32(1)), optimiser, tau=1.0, target_period=1)
        steps.append((float(learner.net.actor), float(learner.net.critics)))
    np.testing.assert_allclose(steps, [(0, -0.1), (-0.01, -0.2), (-0.01, -0.3), (-0.02, -0.4)], rtol=1e-3, atol=1e-6)


def test_rmsprop_has_a_decaying_mean_square_and_momentum():
    optimiser = scale_by_adam_or_rmsprop("rmsprop", max_grad_norm=1.0, epsilon=0.1, decay=0.9, momentum=0.5)
    opt, square, step = optimiser.init(jnp.float32(0)), 0.0, 0.0
    for grad in (4.0, -0.5):
        update, opt = optimiser.update(jnp.float32(grad), opt)
        clipped = np.clip(grad, -1, 1)
        square = 0.9 * square + 0.1 * clipped**2
        step = clipped / (np.sqrt(square) + 0.1) + 0.5 * step
        np.testing.assert_allclose(update, step, rtol=1e-5)


@pytest.mark.usefixtures("standard_promotion")
def test_adam_ignores_the_settings_of_rmsprop():
    ours = scale_by_adam_or_rmsprop("adam", max_grad_norm=1.0, epsilon=1e-3, decay=0.1, momentum=0.9)
    expected = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(eps=1e-3))
    grads = jnp.float32(0.3)
    assert ours.update(grads, ours.init(grads))[0] == expected.update(grads, expected.init(grads))[0]
