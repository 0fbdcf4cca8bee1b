"""R2D2: sequences, stored memories and burn-in."""

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
from weft.settings import configure

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 6, "hidden": (8,), "memory_size": 5, "batch_size": 8, "updates": 1}
SMALL |= {"burn_in": 3, "sequence": 5, "period": 2, "n_step": 2, "capacity": 400, "warm_up_steps": 60}


@pytest.fixture(params=["gru", "lstm"])
def kind(request):
    return request.param


def collected(algo, key, length=12, episode=5) -> tuple[Transition, Any]:
    """Steps of several episodes, each with the memory before it, and the network that acted."""
    env = Cue(algo.num_envs, episode)
    longer = dataclasses.replace(algo, horizon=length)
    state = longer.init(env, key)
    return longer.interact(env, state, key, random=False)[1], state.net


def part(items: Transition, start: int, length: int) -> Transition:
    return jax.tree.map(lambda x: x[start : start + length], items)


def test_the_burn_in_reproduces_the_memory_of_the_actor(kind, key):
    algo = R2D2(**SMALL, memory=kind)
    items, net = collected(algo, key)
    assert items.past is None and items.ended.any()
    found = algo.unroll(net, part(items, 1, 8))
    expected = dataclasses.replace(algo, burn_in=0).unroll(net, part(items, 4, 5))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), found, expected)


def effect_of_memory(algo, items, net, start):
    """The mean change of the network's inputs if a sequence starts with another memory."""
    wrong = dataclasses.replace(items, extra=jax.tree.map(jnp.ones_like, items.extra))
    right, changed = (algo.unroll(net, part(each, start, algo.item_length))[0] for each in (items, wrong))
    return float(np.abs(right - changed).mean())


def test_the_burn_in_reduces_the_effect_of_the_stored_memory(key):
    long = R2D2(**SMALL | {"burn_in": 8, "sequence": 1}, memory="gru")
    items, net = collected(long, key, episode=50)
    assert not items.ended.any()
    assert (
        0
        < effect_of_memory(long, items, net, 0)
        < 0.5 * effect_of_memory(dataclasses.replace(long, burn_in=0), items, net, 8)
    )


def test_after_an_episode_ends_in_the_burn_in_the_stored_memory_has_no_effect(kind, key):
    algo = R2D2(**SMALL, memory=kind)
    items, net = collected(algo, key)
    assert items.ended[4].all()
    assert effect_of_memory(algo, items, net, 3) == 0.0 < effect_of_memory(algo, items, net, 0)


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("double", [True, False])
def test_td_errors_equal_rlax(key, rescale, double):
    algo = R2D2(**SMALL, rescale=rescale, double=double)
    items, net = collected(algo, key)
    items, target = part(items, 0, 8), algo.build(Cue(4), jax.random.key(9))
    steps, inputs, target_inputs = part(items, 3, 5), algo.unroll(net, items), algo.unroll(target, items)
    found, value = algo.td_errors(net, target, steps, inputs, target_inputs, n=2)
    q_tm1, q_t, chooser = net(inputs[0])[..., 0], target(target_inputs[1])[..., 0], (net(inputs[1]) if double else None)
    best = jnp.argmax(q_t if chooser is None else chooser[..., 0], axis=-1)
    discount = algo.gamma * (1.0 - steps.terminated)
    pair = rlax.SIGNED_HYPERBOLIC_PAIR if rescale else rlax.IDENTITY_PAIR
    expected = jax.vmap(
        lambda q, a, t, b, r, d: rlax.transformed_n_step_q_learning(q, a, t, b, r, d, 2, tx_pair=pair), 1, 1
    )(q_tm1, steps.action, q_t, best, steps.reward, discount)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(value, rlax.batched_index(q_tm1, steps.action))


def test_initial_priorities_are_one_step_errors_with_stored_memories(key):
    algo = R2D2(**SMALL)
    items, net = collected(algo, key)
    errors = algo.initial_priorities(net, net, items)
    no_burn_in = dataclasses.replace(algo, burn_in=0, sequence=12)
    expected = no_burn_in.td_errors(net, net, items, no_burn_in.unroll(net, items), no_burn_in.unroll(net, items), n=1)[
        0
    ]
    np.testing.assert_allclose(errors, jnp.abs(expected) + 1e-6, rtol=1e-4, atol=1e-5)


def test_invalid_rows_have_no_gradient_and_no_priority(key):
    algo = R2D2(**SMALL)
    items, net = collected(algo, key)
    items = part(items, 0, 8)
    learner = algo.new_learner(Cue(4), key)
    none = dataclasses.replace(items, valid=jnp.zeros_like(items.valid))
    grads, priority, _ = algo.gradient(learner, none, jnp.ones(4), key)
    assert not any(leaf.any() for leaf in jax.tree.leaves(grads))
    np.testing.assert_allclose(priority, 1e-6)


@pytest.mark.full
@pytest.mark.optimised
def test_a_synchronous_layout_changes_nothing():
    found = check(R2D2(**SMALL), Cue, layout="actors", iterations=2)
    assert found.identical, found.table()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("distributional=true", "unknown field of R2D2 'distributional'"),
        ("sequence=0", "sequence=0, period=8 and burn_in=8"),
    ],
)
def test_invalid_settings_are_refused(setting, message):
    with pytest.raises(WeftError, match=message):
        configure(R2D2, [setting])


def test_a_player_resets_its_memory_at_the_start_of_an_episode(key):
    algo, env = R2D2(**SMALL), Cue(4)
    net = algo.build(env, key)
    memory, play = algo.player(env, net, greedy=True)
    first, _ = play(memory, jnp.ones((4, 2)), jnp.ones(4, bool), key)
    again, _ = play(first, jnp.ones((4, 2)), jnp.ones(4, bool), key)
    on, _ = play(first, jnp.ones((4, 2)), jnp.zeros(4, bool), key)
    assert jax.tree.all(jax.tree.map(np.array_equal, first, again))
    assert not jax.tree.all(jax.tree.map(np.array_equal, first, on))
