import os
import subprocess
import sys
import textwrap

import gymnasium as gym
import numpy as np
import pytest

from tests.envs import toy_envs
from weft.envs.adapters import gymnasium as family
from weft.envs.adapters.arguments import Arguments
from weft.envs.adapters.gymnasium_constructor import GymConstructor
from weft.envs.pools import kinds
from weft.envs.pools.kinds import choose_kind
from weft.envs.pools.options import PoolOptions
from weft.errors import WeftError


def test_environments_are_values():
    assert family.make("CartPole-v1", 2) == family.make("CartPole-v1", 2)
    assert hash(family.make("CartPole-v1", 2)) == hash(family.make("CartPole-v1", 2))
    others = [
        family.make("CartPole-v1", 3),
        family.make("CartPole-v1", 2, vector="workers"),
        family.make("CartPole-v1", 2, sutton_barto_reward=True),
        family.make("Acrobot-v1", 2),
    ]
    assert all(other != family.make("CartPole-v1", 2) for other in others)
    assert family.make_custom(toy_envs.Counting, 1) == family.make_custom("tests.envs.toy_envs:Counting", 1)
    assert family.make_custom(toy_envs.Counting, 1) != family.make_custom(toy_envs.Terminating, 1)
    assert family.make_custom(lambda: toy_envs.Counting(), 1) != family.make_custom(lambda: toy_envs.Counting(), 1)


def test_arguments_may_be_lists():
    maps = [family.make("FrozenLake-v1", 1, desc=["SF", "FG"]) for _ in range(2)]
    assert maps[0] == maps[1] and hash(maps[0]) == hash(maps[1])
    assert maps[0].observation_space.n == 4


def test_arguments_reach_the_environment():
    pool = family.make("CartPole-v1", 1, vector="inprocess", max_episode_steps=2).pool_factory.make_pool([0], [1])
    pool.reset()
    pool.step(np.zeros(1, np.int32), None)
    assert pool.step(np.zeros(1, np.int32), None).truncated.all()
    pool.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gravity": 3}, "unknown option of gym:CartPole-v1 'gravity': .*known: .*on_error.*vector"),
        ({"vector": "threads"}, "it must be auto, inprocess, workers, sync, async or native"),
        ({"on_error": "ignore"}, "on_error is 'ignore': it must be stop or restart"),
        ({"workers": 0}, "workers is 0: it must be a whole number from 1"),
        ({"timeout": -1}, "timeout is -1: it must be a number of seconds above 0"),
        ({"autoreset": "now", "vector": "sync"}, "it must be next_step, same_step or disabled"),
        ({"autoreset": "disabled"}, "autoreset is for vector=sync, async or native"),
        ({"on_error": "restart", "vector": "sync"}, "use vector=workers"),
        ({"workers": 2, "vector": "inprocess"}, "workers is for vector=workers"),
    ],
)
def test_an_invalid_option_is_rejected(options, message):
    with pytest.raises(WeftError, match=message):
        family.make("CartPole-v1", 1, **options)


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPole-v7", "did you mean 'CartPole-v1'"),
        ("LunarLandr-v3", "did you mean 'LunarLander-v3'"),
        ("nowhere.at_all:Thing-v0", "no module named 'nowhere.at_all'"),
        ("HalfCheetah-v2", "gym:HalfCheetah-v2 cannot be made: .*gymnasium-robotics"),
    ],
)
def test_an_invalid_id_is_rejected(env_id, message):
    with pytest.raises(WeftError, match=message):
        family.make(env_id, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("tests.envs.toy_envs:Countin", "unknown name in tests.envs.toy_envs 'Countin': did you mean 'Counting'"),
        ("tests.envs.nothing:Counting", "no module named 'tests.envs.nothing'"),
        ("tests/envs/toy_envs.py:Counting", "not a module's name"),
        ("tests.envs.toy_envs", "names no attribute of a module: give your own environment as module:attribute"),
        ("tests.envs.toy_envs:LENGTH", "makes no environment"),
        (dict, "makes no environment"),
    ],
)
def test_an_invalid_custom_environment_is_rejected(given, message):
    with pytest.raises(WeftError, match=message):
        family.make_custom(given, 1)


def test_an_unsupported_space_is_rejected():
    class Talking(toy_envs.Counting):
        observation_space = gym.spaces.Text(5)

    with pytest.raises(WeftError, match="the space Text.* is not supported"):
        family.make_custom(Talking, 1)


def test_available_environments_are_the_newest_versions_with_descriptions():
    lines = family.available()
    assert {"CartPole-v1", "Taxi-v4", "HalfCheetah-v5", "ALE/Pong-v5"} <= set(lines)
    assert not {"CartPole-v0", "HalfCheetah-v4", "HalfCheetah-v2", "Pong-v4"} & set(lines)
    assert all(line and "\n" not in line for line in lines.values())


@pytest.mark.parametrize("env_id", [env_id for env_id in family.available() if not env_id.startswith("ALE/")])
def test_every_available_environment_steps(env_id):
    factory = family.make(env_id, 2, vector="inprocess").pool_factory
    space = factory.action_space
    pool = factory.make_pool(range(2), [1, 2])
    pool.reset()
    low = 0 if isinstance(space, gym.spaces.Discrete) else space.low
    step = pool.step(np.stack([low, low]).astype(np.int32 if space.dtype.kind == "i" else np.float32), None)
    assert step.valid.all() and step.reward.shape == (2,)
    pool.close()


def test_ids_classes_functions_and_names_make_equal_environments():
    gym.register("weft-test/Here-v0", entry_point=lambda length=3: toy_envs.Counting(length))
    length = 4
    sources = [
        family.make("weft-test/Here-v0", 2, length=4, vector="workers", workers=1),
        family.make_custom("tests.envs.toy_envs:Counting", 2, length=4, vector="workers", workers=1),
        family.make_custom(toy_envs.Counting, 2, length=4, vector="workers", workers=1),
        family.make_custom(lambda: toy_envs.Counting(length), 2, vector="workers", workers=1),
    ]
    streams = []
    for env in sources:
        pool = env.pool_factory.make_pool(range(2), [7, 8])
        pool.reset()
        streams.append(np.stack([pool.step(np.zeros(2, np.int32), None).obs for _ in range(6)]))
        pool.close()
    assert all((stream == streams[0]).all() for stream in streams)
    del gym.registry["weft-test/Here-v0"]


SCRIPT = """
    import gymnasium as gym
    import numpy as np
    from weft.envs.adapters import gymnasium as family

    class Mine(gym.Env):
        observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return np.ones(1, np.float32), 1.0, False, False, {}

    if __name__ == "__main__":
        for given in (Mine, "beside:Other"):
            pool = family.make_custom(given, 2, vector="workers", workers=2).pool_factory.make_pool(range(2), [1, 2])
            pool.reset()
            print(pool.step(np.zeros(2, np.int32), None).obs.ravel().tolist())
            pool.close()
"""


def test_classes_of_the_main_script_and_of_modules_beside_it_work_in_workers(tmp_path):
    script = textwrap.dedent(SCRIPT)
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "beside.py").write_text(script.replace("class Mine", "class Other").partition("if __name__")[0])
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout.split("\n")[:2] == ["[1.0, 1.0]"] * 2


@pytest.mark.parametrize(
    ("seconds", "cores", "options", "expected"),
    [
        (1e-3, 3, {}, "workers"),
        (1e-3, 2, {}, "inprocess"),
        (5e-6, 8, {}, "inprocess"),
        (1e-3, 8, {}, "workers"),
        (1e-3, 1, {}, "inprocess"),
        (1e-3, 8, {"workers": 1}, "inprocess"),
        (5e-6, 8, {"vector": "workers"}, "workers"),
        (1e-3, 8, {"vector": "inprocess"}, "inprocess"),
    ],
)
def test_auto_selects_the_faster_kind_of_pool(monkeypatch, seconds, cores, options, expected):
    monkeypatch.setattr(kinds, "cores", lambda: cores)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.2, 0.0, 0.0))
    monkeypatch.setattr(GymConstructor, "step_seconds", seconds)
    source = GymConstructor("a game", toy_envs.Counting, Arguments.of({"length": round(seconds * 1e6) + cores}))
    assert choose_kind(source, PoolOptions(**options), 8) == expected
    choose_kind.cache_clear()


def test_a_pool_reports_its_kind(monkeypatch):
    monkeypatch.setattr(kinds, "idle_cores", lambda: 2)
    quick = family.make_custom(toy_envs.Counting, 4).pool_factory.make_pool(range(4), range(4))
    slow = family.make_custom(toy_envs.Slow, 4, workers=2).pool_factory.make_pool(range(4), range(4))
    assert (quick.kind, slow.kind) == ("inprocess", "workers")
    quick.close()
    slow.close()
