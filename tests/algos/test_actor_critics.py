"""Properties of all actor-critic algorithms with replay: DDPG, TD3, D4PG, SAC and discrete SAC."""

from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.replayed import CONTINUOUS, DISCRETE, SMALL, batch_of, begin, items_of
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
"""The algorithms, with settings for returns of about 1."""


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def env_of(kind):
    return DISCRETE if kind is DiscreteSAC else CONTINUOUS


@pytest.mark.parametrize("kind", ALGOS.values(), ids=ALGOS)
def test_the_default_of_a_field_is_the_class_attribute(kind):
    assert all(each.default == getattr(kind, each.name) for each in fields(kind))


def largest(tree):
    return max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def close(one, other):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), one, other)


def test_importance_weights_scale_the_gradient_of_the_critics_only(kind, key):
    algo, env, learner = begin(kind, key, env_of(kind), **KINDS[kind])
    items = items_of(env, key, steps=algo.n_step)
    gradient = jax.jit(lambda weight: algo.gradient(learner, items, weight, key)[0])
    full, none = gradient(jnp.ones(16)), gradient(jnp.zeros(16))
    assert largest(none.critics) == 0 < min(largest(full.critics), largest(none.actor))
    close(full.actor, none.actor)


def test_invalid_rows_do_not_change_the_gradient(kind, key):
    algo, env, learner = begin(kind, key, env_of(kind), n_step=1, **KINDS[kind])
    items = items_of(env, key)
    masked = replace(items, valid=items.valid.at[:, 8:].set(False))
    garbled = jax.tree.map(lambda x: x.at[:, 8:].set(0) if x.dtype != bool else x, masked)
    gradient = jax.jit(lambda items: algo.gradient(learner, items, jnp.ones(16), key)[0])
    close(gradient(masked), gradient(garbled))
    assert largest(jax.tree.map(jnp.subtract, gradient(items), gradient(masked))) > 0


def test_an_iteration_keeps_the_shapes_and_types_of_the_state(kind, key):
    algo, env, _ = begin(kind, key, env_of(kind), prioritised=True)
    state = jax.eval_shape(lambda key: algo.init(env, key), key)
    for step in (algo.warm_up, algo.step):
        after, metrics = jax.eval_shape(lambda state, step=step: step(env, state), state)
        assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), after) == jax.tree.map(
            lambda x: (x.shape, x.dtype, x.weak_type), state
        )
        assert all(isinstance(mean, Mean) and mean.total.shape == mean.count.shape == () for mean in metrics.values())
    assert {"loss", "policy_loss", "value"} <= set(metrics)


def test_initial_priorities_equal_the_errors_of_the_loss(kind, key):
    noiseless = {"target_noise": 0.0} if kind is TD3 else {}
    algo, env, learner = begin(kind, key, env_of(kind), n_step=1, **noiseless)
    trajectory = items_of(env, key, steps=3, size=4)
    errors = algo.initial_priorities(learner.net, learner.target, trajectory)
    gradient = jax.jit(lambda items: algo.gradient(learner, items, jnp.ones(4), key)[1])
    steps = [jax.tree.map(lambda x, t=t: x[t : t + 1], trajectory) for t in range(3)]
    expected = [gradient(items) for items in steps]
    assert errors.shape == (3, 4)
    if kind is not SAC:  # its targets are sampled
        np.testing.assert_allclose(errors, jnp.stack(expected), rtol=1e-4, atol=1e-5)


def reward_of(action):
    """At most 1: for the discrete action 1, and for the continuous action 0.5."""
    return (action == 1).astype(jnp.float32) if action.dtype == jnp.int32 else 1.0 - jnp.square(action[..., 0] - 0.5)


def test_a_policy_learns_the_best_action(kind, key):
    """Every step ends its episode, so the value of an action is its reward."""
    fast = {"hidden": (32,), "lr": 1e-2, "actor_lr": 1e-3, "temperature": 0.01, "learn_temperature": False}
    settings = {name: value for name, value in fast.items() if hasattr(kind, name)}
    algo, env, learner = begin(kind, key, env_of(kind), **KINDS[kind], **settings)

    def update(learner, key):
        items = items_of(env, key, steps=algo.n_step, size=64, reward=reward_of)
        items = replace(items, terminated=jnp.ones_like(items.terminated))
        return algo.learn(learner, batch_of(items), key)[0], None

    run = jax.jit(lambda learner: jax.lax.scan(update, learner, jax.random.split(key, 600))[0])
    _, play = algo.player(env, run(learner).net, greedy=True)
    obs = jax.random.normal(key, (32, *env.observation_space.shape))
    _, action = play((), obs, jnp.zeros(32, bool), key)
    assert reward_of(action).mean() > 0.9


def test_only_a_greedy_player_is_deterministic(kind, key):
    algo, env, learner = begin(kind, key, env_of(kind))
    obs, start = jax.random.normal(key, (32, *env.observation_space.shape)), jnp.zeros(32, bool)
    for greedy in (True, False):
        _, play = algo.player(env, learner.net, greedy=greedy)
        first, second = (play((), obs, start, jax.random.key(seed))[1] for seed in (1, 2))
        assert bool((first == second).all()) == greedy


@pytest.mark.parametrize(("fixed", "changed"), [("actor", "critics"), ("critics", "actor")])
def test_actor_and_critics_have_separate_step_sizes(fixed, changed, key):
    rate = "actor_lr" if fixed == "actor" else "lr"
    algo, env, learner = begin(SAC, key, **{rate: 0.0})
    after = algo.update(learner, jax.tree.map(jnp.ones_like, learner.net))
    change = jax.tree.map(jnp.subtract, after.net, learner.net)
    assert largest(getattr(change, fixed)) == 0 < largest(getattr(change, changed))
    assert (largest(change.log_temperature) > 0) == (fixed == "actor"), (
        "the temperature has the step size of the critics"
    )


@pytest.mark.parametrize(
    "layout",
    [
        "apex:actors=2",
        *(pytest.param(f"{each}=2", marks=pytest.mark.full) for each in ("fused:devices", "allreduce:workers")),
    ],
)
def test_all_gradient_steps_run_after_the_warm_up(layout):
    result = train_in_memory(D4PG(**SMALL, prioritised=True), CONTINUOUS, layout=layout, steps=60)
    assert (result.steps, int(result.state.learner.updates)) == (60, 5 * 2)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(result.state.net))


@pytest.mark.parametrize(
    ("kind", "env", "hint"), [(SAC, DISCRETE, "discrete_sac"), (DiscreteSAC, CONTINUOUS, "use sac")]
)
def test_an_unsupported_action_space_is_refused(kind, env, hint, key):
    with pytest.raises(WeftError, match=hint):
        begin(kind, key, env)
