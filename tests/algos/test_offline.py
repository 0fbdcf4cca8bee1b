"""Algorithms that learn from a dataset: all of it, nothing else, and in any layout that steps no environment."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algos.recorded import ENV, NUMBERS, record
from weft import WeftError, check, train
from weft.algos.bc import BC
from weft.algos.continuous_cql import ContinuousCQL
from weft.algos.cql import CQL
from weft.algos.offline import Offline
from weft.envs import make
from weft.runtime import driver

SMALL: dict[str, Any] = {"num_envs": 4, "hidden": (8,), "batch_size": 16, "updates": 2}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return record(tmp_path_factory.mktemp("played") / "data")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    return record(tmp_path_factory.mktemp("played") / "data", NUMBERS)


@dataclass(frozen=True)
class Case:
    """An algorithm where it is at home."""

    kind: type[Offline]
    env: str
    single_step: Any = field(default_factory=dict, hash=False)
    """Settings for when what follows a step is drawn at random: it only blurs what the step itself earned."""

    def __str__(self) -> str:
        return f"{self.kind.__name__}-{self.env}"


CASES = (
    Case(BC, ENV),
    Case(BC, NUMBERS),
    Case(CQL, ENV, {"gamma": 0.0, "alpha": 0.1}),
    Case(ContinuousCQL, NUMBERS, {"gamma": 0.0, "alpha": 0.1, "actor_lr": 1e-2}),
)


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def small(case: Case, dataset: str, numbers: str) -> Offline:
    """The algorithm of a case, in small."""
    return case.kind(**SMALL, dataset=dataset if case.env == ENV else numbers)


@pytest.mark.parametrize("replay", ["device", "host"])
def test_steps_are_those_that_were_drawn(case: Case, small: Offline, replay: Any) -> None:
    result = driver.train_in_memory(replace(small, replay=replay), case.env, steps=100)
    assert (result.steps, result.iterations, result.episodes) == (128, 4, 0)
    assert int(result.state.learner.updates) == 8


@pytest.mark.parametrize("layout", ["fused:devices=2", "allreduce:workers=2"])
def test_replicas_share_the_dataset(case: Case, small: Offline, layout: str) -> None:
    result = driver.train_in_memory(small, case.env, layout=layout, steps=64)
    assert result.steps == 64
    assert jax.tree.all(jax.tree.map(lambda x: np.isfinite(x).all(), result.state.net))


def test_a_layout_that_only_divides_learning_changes_nothing(dataset: str) -> None:
    found = check(BC(**SMALL, dataset=dataset), ENV, layout="allreduce:workers=1", iterations=2)
    assert found.identical, found.table()


def test_a_layout_that_steps_environments_is_refused(dataset: str) -> None:
    with pytest.raises(WeftError, match="role 'actor' runs 'env', and the algorithm has no such fragment"):
        driver.train_in_memory(BC(**SMALL, dataset=dataset), ENV, layout="actors", steps=64)


@pytest.mark.parametrize("replay", ["device", "host"])
@pytest.mark.parametrize("length", [1, 3])
def test_every_step_is_drawn_and_stays_with_its_own(dataset: str, replay: Any, length: int, key: jax.Array) -> None:
    algo, env = CQL(**SMALL, dataset=dataset, replay=replay, n_step=length), make(ENV, 4)
    state = algo.init(env, key)
    _, batch = algo.table.sample(state.replay, key, (4, 1000))
    steps, pieces = batch.steps, 1 if replay == "host" else 4
    assert steps["obs"].shape == (length, 4, 1000, 4)
    assert len(np.unique(steps["obs"][0, ..., 0])) == 400 - pieces * (length - 1), "all but the last of each piece"
    np.testing.assert_array_equal(steps["action"], steps["obs"][..., 0] > 0)
    np.testing.assert_array_equal(steps["final_obs"][:-1], steps["obs"][1:])


def accuracy(algo: Offline, env: Any, net: Any) -> float:
    obs = jax.random.normal(jax.random.key(1), (500, *env.observation_space.shape))
    _, play = algo.player(env, net, greedy=True)
    action = play((), obs, jnp.zeros(500, bool), jax.random.key(0))[1]
    return float(jnp.mean((action.reshape(500) > 0) == (obs[:, 0] > 0)))


def test_what_was_done_is_learned(case: Case, tmp_path: Any) -> None:
    """Behaviour cloning does what was mostly done; conservative Q-learning also sees what it earned."""
    path = record(tmp_path / "data", case.env, steps=2000, wrong=0.2)
    algo = case.kind(**SMALL | {"batch_size": 64, "updates": 16}, dataset=path, lr=1e-2, **case.single_step)
    result = driver.train_in_memory(algo, case.env, steps=20_000)
    assert accuracy(algo, make(case.env, 1), result.state.net) > 0.9


def test_a_conservative_loss_lowers_what_was_not_done(dataset: str, key: jax.Array) -> None:
    gaps = []
    for alpha in (0.0, 2.0):
        algo = CQL(**SMALL, dataset=dataset, alpha=alpha, lr=1e-2)
        state = driver.train_in_memory(algo, ENV, steps=2_000).state
        obs = jax.random.normal(key, (500, 4))
        q, action = state.net(obs)[..., 0], (obs[:, 0] > 0).astype(jnp.int32)
        done, other = (jnp.take_along_axis(q, each[:, None], 1).mean() for each in (action, 1 - action))
        gaps.append(float(done - other))
    assert gaps[1] > gaps[0] + 0.5


def test_what_is_drawn_is_as_likely_as_it_is_worth(dataset: str, key: jax.Array) -> None:
    algo, env = CQL(**SMALL, dataset=dataset), make(ENV, 1)
    net, obs = algo.build(env, key), jnp.ones((20_000, 4))
    _, play = algo.player(env, net, greedy=False)
    share = jnp.mean(play((), obs, jnp.zeros(20_000, bool), key)[1] == 1)
    np.testing.assert_allclose(share, jax.nn.softmax(net(obs[0])[..., 0])[1], atol=0.02)


def test_evaluation_needs_no_step_of_the_training(dataset: str, tmp_path: Any) -> None:
    evaluating: dict[str, Any] = {"eval_every": 64, "eval_episodes": 2}
    result = train(BC(**SMALL, dataset=dataset), ENV, steps=64, **evaluating, quiet=True, out=tmp_path / "run")
    assert result.evaluation is not None and result.evaluation >= 8


@pytest.mark.parametrize(
    ("settings", "env", "wrappers", "message"),
    [
        ({"dataset": ""}, ENV, (), "bc learns from a dataset: give one, as --dataset DIR"),
        ({"dataset": "/nowhere"}, ENV, (), "no dataset in /nowhere"),
        ({}, "gymnax:Acrobot-v1", (), "was recorded on gymnax:CartPole-v1, with observation_space"),
        ({}, ENV, ("normalise_obs",), "NormaliseObs learns from the steps that are taken, and bc takes none"),
        (
            {"num_envs": 500},
            ENV,
            (),
            r"has 400 steps, but 500 rows \(num_envs\) with items of 1 steps need at least 500",
        ),
        ({"gamma": 0.5}, ENV, (), "never read its setting gamma=0.5"),
    ],
)
def test_what_makes_no_sense_is_refused(
    dataset: str, settings: Any, env: str, wrappers: Any, message: str, tmp_path: Any
) -> None:
    algo = BC(**SMALL | {"dataset": dataset} | settings)
    with pytest.raises(WeftError, match=message):
        train(algo, env, steps=64, wrappers=wrappers, quiet=True, out=tmp_path / "run")


def test_priorities_are_refused(dataset: str) -> None:
    with pytest.raises(WeftError, match="all drawn alike: leave prioritised out"):
        replace(BC(dataset=dataset), prioritised=True)
