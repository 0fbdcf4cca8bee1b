"""R2D2: what is learned from a sequence is what the actor saw there."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from tests.algos.cue import Cue
from weft import WeftError, check
from weft.algos.r2d2 import R2D2
from weft.ops.rollout import Transition

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 6, "hidden": (8,), "memory_size": 5, "batch_size": 8, "updates": 1}
SMALL |= {"burn_in": 3, "sequence": 5, "period": 2, "n_step": 2, "capacity": 400, "warm_up_steps": 60}


@pytest.fixture(params=["gru", "lstm"])
def kind(request):
    return request.param


def played(algo, key, length=12, episode=5) -> tuple[Transition, Any]:
    """Steps of some episodes, each with the memory from before it, and the net that acted."""
    env = Cue(algo.num_envs, episode)
    longer = dataclasses.replace(algo, horizon=length)
    state = longer.init(env, key)
    return longer._collect(env, state, key, random=False)[1], state.net


def part(items: Transition, start: int, length: int) -> Transition:
    return jax.tree.map(lambda x: x[start : start + length], items)


def test_a_burn_in_comes_to_what_the_actor_remembered(kind, key):
    algo = R2D2(**SMALL, memory=kind)
    items, net = played(algo, key)
    assert items.past is None and items.ended.any()
    found = algo._around(net, part(items, 1, 8))
    expected = dataclasses.replace(algo, burn_in=0)._around(net, part(items, 4, 5))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), found, expected)


def off_by(algo, items, net, start):
    """How much what is seen in a sequence changes with the memory that it begins with."""
    wrong = dataclasses.replace(items, extra=jax.tree.map(jnp.ones_like, items.extra))
    right, given = (algo._around(net, part(each, start, algo.item_length))[0] for each in (items, wrong))
    return float(np.abs(right - given).mean())


def test_a_burn_in_makes_a_wrong_memory_matter_less(key):
    long = R2D2(**SMALL | {"burn_in": 8, "sequence": 1}, memory="gru")
    items, net = played(long, key, episode=50)
    assert not items.ended.any()
    assert 0 < off_by(long, items, net, 0) < 0.5 * off_by(dataclasses.replace(long, burn_in=0), items, net, 8)


def test_after_an_end_in_the_burn_in_the_stored_memory_does_not_matter(kind, key):
    algo = R2D2(**SMALL, memory=kind)
    items, net = played(algo, key)
    assert items.ended[4].all()
    assert off_by(algo, items, net, 3) == 0.0 < off_by(algo, items, net, 0)


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("double", [True, False])
def test_errors_are_rlax_s(key, rescale, double):
    algo = R2D2(**SMALL, rescale=rescale, double=double)
    items, net = played(algo, key)
    items, target = part(items, 0, 8), algo.build(Cue(4), jax.random.key(9))
    learned, ours, theirs = part(items, 3, 5), algo._around(net, items), algo._around(target, items)
    found, value = algo._errors(net, target, learned, ours, theirs, n=2)
    q_tm1, q_t, chooser = net(ours[0])[..., 0], target(theirs[1])[..., 0], (net(ours[1]) if double else None)
    best = jnp.argmax(q_t if chooser is None else chooser[..., 0], axis=-1)
    discount = algo.gamma * (1.0 - learned.terminated)
    pair = rlax.SIGNED_HYPERBOLIC_PAIR if rescale else rlax.IDENTITY_PAIR
    expected = jax.vmap(
        lambda q, a, t, b, r, d: rlax.transformed_n_step_q_learning(q, a, t, b, r, d, 2, tx_pair=pair), 1, 1
    )(q_tm1, learned.action, q_t, best, learned.reward, discount)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(value, rlax.batched_index(q_tm1, learned.action))


def test_first_priorities_are_errors_with_the_memories_that_there_were(key):
    algo = R2D2(**SMALL)
    items, net = played(algo, key)
    errors = algo.errors(net, net, items)
    alone = dataclasses.replace(algo, burn_in=0, sequence=12)
    expected = alone._errors(net, net, items, alone._around(net, items), alone._around(net, items), n=1)[0]
    np.testing.assert_allclose(errors, jnp.abs(expected) + 1e-6, rtol=1e-4, atol=1e-5)


def test_rows_that_are_not_valid_are_not_learned_from(key):
    algo = R2D2(**SMALL)
    items, net = played(algo, key)
    items = part(items, 0, 8)
    learner = algo.beginner(Cue(4), key)
    none = dataclasses.replace(items, valid=jnp.zeros_like(items.valid))
    grads, priority, _ = algo.gradient(learner, none, jnp.ones(4), key)
    assert not any(leaf.any() for leaf in jax.tree.leaves(grads))
    np.testing.assert_allclose(priority, 1e-6)


def test_a_layout_changes_nothing():
    found = check(R2D2(**SMALL), Cue, layout="actors", iterations=2)
    assert found.identical, found.table()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"distributional": True}, "r2d2 learns numbers"), ({"sequence": 0}, "sequence=0, period=8 and burn_in=8")],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(WeftError, match=message):
        R2D2(**settings)


def test_playing_forgets_between_episodes(key):
    algo, env = R2D2(**SMALL), Cue(4)
    net = algo.build(env, key)
    memory, play = algo.player(env, net, greedy=True)
    first, _ = play(memory, jnp.ones((4, 2)), jnp.ones(4, bool), key)
    again, _ = play(first, jnp.ones((4, 2)), jnp.ones(4, bool), key)
    on, _ = play(first, jnp.ones((4, 2)), jnp.zeros(4, bool), key)
    assert jax.tree.all(jax.tree.map(np.array_equal, first, again))
    assert not jax.tree.all(jax.tree.map(np.array_equal, first, on))
