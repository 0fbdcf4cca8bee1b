"""The run's folder has a safe and unused name, and its files are written atomically."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.algos.ppo import PPO
from weft.envs.world import World
from weft.errors import WeftError
from weft.report import files
from weft.report.files import RunFolder, choose_folder, describe_run, safe_name, write_atomically
from weft.report.system import EdgeTraffic, Lag, RoleTime, System
from weft.report.update import Update

SYSTEM = System(
    seconds=0.1,
    roles=(RoleTime("actor", 0.25, 0.5, 0.25), RoleTime("learner", 1.0, 0.0, 0.0)),
    edges=(
        EdgeTraffic(
            "actor", "learner", "stream", 20.0, 80.0, depth=1, depth_max=2, sender_waits=0.5, receiver_waits=0.25
        ),
    ),
    lag=Lag({1: 1, 0: 3}),
    batches={"actor": {2: 5}},
)
UPDATE = Update(1, 1, 8, 0.1, {"loss": (np.ones(1), np.ones(1))})


@given(st.text())
def test_safe_name_is_one_path_component_of_safe_characters(text):
    assert re.fullmatch(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?", safe_name(text))


def test_default_folders_are_distinct(tmp_path):
    for _ in range(3):
        path = choose_folder(None, algo="ppo", env="a:b/c", root=tmp_path)
        assert not path.exists() and path.name.startswith("ppo-a-b-c-")
        path.mkdir()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_with_files_is_rejected(tmp_path):
    assert choose_folder(tmp_path, algo="ppo", env="e") == tmp_path
    assert choose_folder(tmp_path / "new", algo="ppo", env="e") == tmp_path / "new"
    (tmp_path / "old.txt").touch()
    with pytest.raises(WeftError, match="already holds files"):
        choose_folder(tmp_path, algo="ppo", env="e")
    with pytest.raises(WeftError, match="is a file"):
        choose_folder(tmp_path / "old.txt", algo="ppo", env="e")


def test_the_first_update_creates_the_folder(tmp_path):
    folder = RunFolder(tmp_path / "run", describe_run(PPO(num_envs=3), World("gymnax:CartPole-v1"), seed=1))
    folder.close()
    assert not folder.path.exists()
    folder(UPDATE)
    folder.close()
    folder.close()
    config = json.loads((folder.path / files.CONFIG).read_text())
    assert config["config"]["num_envs"] == 3 and config["seed"] == 1 and {"weft", "jax"} <= set(config)
    assert json.loads((folder.path / files.METRICS).read_text()) == {"iteration": 1, "steps": 8, "loss": 1.0}
    assert len(list(folder.path.glob("events.*"))) == 1
    assert not (folder.path / files.SYSTEM).exists()


def test_each_system_reading_is_a_line_and_the_last_covers_the_whole_run(tmp_path):
    folder = RunFolder(tmp_path / "run", {})
    folder(replace(UPDATE, system=SYSTEM))
    folder(UPDATE)
    folder(replace(UPDATE, system=SYSTEM, total=replace(SYSTEM, seconds=0.3, lag=None)))
    folder.close()
    lines = [json.loads(line) for line in (folder.path / files.SYSTEM).read_text().splitlines()]
    assert [(line["total"], line["over_s"]) for line in lines] == [(False, 0.1), (False, 0.1), (True, 0.3)]
    assert lines[0] == {
        **{"steps": 8, "seconds": 0.1, "total": False, "over_s": 0.1},
        **{"role/actor/computing": 0.25, "role/actor/waiting": 0.5, "role/actor/sending": 0.25},
        **{"role/learner/computing": 1.0, "role/learner/waiting": 0.0, "role/learner/sending": 0.0},
        "edge/actor-to-learner/stream/messages_per_s": 20.0,
        "edge/actor-to-learner/stream/bytes_per_s": 80.0,
        "edge/actor-to-learner/stream/depth": 1,
        "edge/actor-to-learner/stream/depth_max": 2,
        "edge/actor-to-learner/stream/sender_waits_s": 0.5,
        "edge/actor-to-learner/stream/receiver_waits_s": 0.25,
        **{"lag/mean": 0.25, "lag/max": 1, "lag/counts": {"0": 3, "1": 1}},
        "batch/actor/counts": {"2": 5},
    }
    assert not [name for name in lines[2] if name.startswith("lag")]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"] and path.read_bytes() == b"old"
