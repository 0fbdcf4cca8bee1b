"""What DDPG, TD3, D4PG and both SACs must hold to."""

from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.replayed import CHOICES, NUMBERS, SMALL, batch_of, begin, items_of
from weft.algos import ALGOS
from weft.algos.d4pg import D4PG
from weft.algos.ddpg import DDPG
from weft.algos.discrete_sac import DiscreteSAC
from weft.algos.sac import SAC
from weft.algos.td3 import TD3
from weft.errors import WeftError
from weft.metrics import Mean
from weft.runtime.driver import train_in_memory

KINDS = {DDPG: {}, TD3: {}, D4PG: {"v_min": -6.0, "v_max": 3.0}, SAC: {}, DiscreteSAC: {}}
"""All of them, with settings for returns of about 1."""


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def world_of(kind):
    return CHOICES if kind is DiscreteSAC else NUMBERS


@pytest.mark.parametrize("kind", ALGOS.values(), ids=ALGOS)
def test_a_default_is_the_one_that_the_class_shows(kind):
    """Of two classes that are extended, the first also brings the defaults that it did not set itself."""
    assert all(each.default == getattr(kind, each.name) for each in fields(kind))


def largest(tree):
    return max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def close(one, other):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), one, other)


def test_each_part_gets_its_own_gradient_alone(kind, key):
    """A weight of 0 leaves out what the critics would learn, and the policy does not notice."""
    algo, env, learner = begin(kind, key, world_of(kind), **KINDS[kind])
    items = items_of(env, key, steps=algo.n_step)
    gradient = jax.jit(lambda weight: algo.gradient(learner, items, weight, key)[0])
    full, none = gradient(jnp.ones(16)), gradient(jnp.zeros(16))
    assert largest(none.critics) == 0 < min(largest(full.critics), largest(none.actor))
    close(full.actor, none.actor)


def test_invalid_rows_are_not_learned_from(kind, key):
    algo, env, learner = begin(kind, key, world_of(kind), n_step=1, **KINDS[kind])
    items = items_of(env, key)
    # The draws of the noise go by rows, so the same rows are there both times.
    masked = replace(items, valid=items.valid.at[:, 8:].set(False))
    garbled = jax.tree.map(lambda x: x.at[:, 8:].set(0) if x.dtype != bool else x, masked)
    gradient = jax.jit(lambda items: algo.gradient(learner, items, jnp.ones(16), key)[0])
    close(gradient(masked), gradient(garbled))
    assert largest(jax.tree.map(jnp.subtract, gradient(items), gradient(masked))) > 0


def test_a_step_keeps_the_types_of_the_state(kind, key):
    algo, env, _ = begin(kind, key, world_of(kind), prioritised=True)
    state = jax.eval_shape(lambda key: algo.init(env, key), key)
    for step in (algo.warm_up, algo.step):
        after, metrics = jax.eval_shape(lambda state, step=step: step(env, state), state)
        assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), after) == jax.tree.map(
            lambda x: (x.shape, x.dtype, x.weak_type), state
        )
        assert all(isinstance(mean, Mean) and mean.total.shape == mean.count.shape == () for mean in metrics.values())
    assert {"loss", "policy_loss", "value"} <= set(metrics)


def test_errors_of_collected_steps_are_those_of_items(kind, key):
    still = {"blur": 0.0} if kind is TD3 else {}
    algo, env, learner = begin(kind, key, world_of(kind), n_step=1, **still)
    seen = items_of(env, key, steps=3, size=4)
    errors = algo.errors(learner.net, learner.target, seen)
    gradient = jax.jit(lambda items: algo.gradient(learner, items, jnp.ones(4), key)[1])
    apart = [jax.tree.map(lambda x, t=t: x[t : t + 1], seen) for t in range(3)]
    again = [gradient(items) for items in apart]
    assert errors.shape == (3, 4)
    if kind is not SAC:  # whose targets are drawn
        np.testing.assert_allclose(errors, jnp.stack(again), rtol=1e-4, atol=1e-5)


def good(action):
    """1 for the choice 1, and for a push of 0.5; less for every other."""
    return (action == 1).astype(jnp.float32) if action.dtype == jnp.int32 else 1.0 - jnp.square(action[..., 0] - 0.5)


def test_a_policy_comes_to_what_is_best(kind, key):
    """Every step ends its episode, so what an action is worth is its reward."""
    fast = {"hidden": (32,), "lr": 1e-2, "actor_lr": 1e-3, "temperature": 0.01, "learn_temperature": False}
    settings = {name: value for name, value in fast.items() if hasattr(kind, name)}
    algo, env, learner = begin(kind, key, world_of(kind), **KINDS[kind], **settings)

    def update(learner, key):
        items = items_of(env, key, steps=algo.n_step, size=64, reward=good)
        items = replace(items, terminated=jnp.ones_like(items.terminated))
        return algo.learn(learner, batch_of(items), key)[0], None

    run = jax.jit(lambda learner: jax.lax.scan(update, learner, jax.random.split(key, 600))[0])
    _, play = algo.player(env, run(learner).net, greedy=True)
    obs = jax.random.normal(key, (32, *env.observation_space.shape))
    _, action = play((), obs, jnp.zeros(32, bool), key)
    assert good(action).mean() > 0.9


def test_playing_is_greedy_or_as_in_training(kind, key):
    algo, env, learner = begin(kind, key, world_of(kind))
    obs, start = jax.random.normal(key, (32, *env.observation_space.shape)), jnp.zeros(32, bool)
    for greedy in (True, False):
        _, play = algo.player(env, learner.net, greedy=greedy)
        first, second = (play((), obs, start, jax.random.key(seed))[1] for seed in (1, 2))
        assert bool((first == second).all()) == greedy


@pytest.mark.parametrize(("still", "moves"), [("actor", "critics"), ("critics", "actor")])
def test_the_policy_has_a_step_size_of_its_own(still, moves, key):
    rate = "actor_lr" if still == "actor" else "lr"
    algo, env, learner = begin(SAC, key, **{rate: 0.0})
    after = algo.update(learner, jax.tree.map(jnp.ones_like, learner.net))
    change = jax.tree.map(jnp.subtract, after.net, learner.net)
    assert largest(getattr(change, still)) == 0 < largest(getattr(change, moves))
    assert (largest(change.log_temperature) > 0) == (still == "actor"), "it goes with the critics"


@pytest.mark.parametrize("layout", ["fused:devices=2", "allreduce:workers=2", "apex:actors=2"])
def test_every_update_is_made_after_the_warm_up(layout):
    result = train_in_memory(D4PG(**SMALL, prioritised=True), NUMBERS, layout=layout, steps=60)
    assert (result.steps, int(result.state.learner.updates)) == (60, 5 * 2)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(result.state.net))


@pytest.mark.parametrize(("kind", "env", "hint"), [(SAC, CHOICES, "discrete_sac"), (DiscreteSAC, NUMBERS, "use sac")])
def test_other_actions_are_refused(kind, env, hint, key):
    with pytest.raises(WeftError, match=hint):
        begin(kind, key, env)
