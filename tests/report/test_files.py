"""A run's folder: named safely, never shared, whole."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.algos.ppo import PPO
from weft.envs.world import World
from weft.errors import WeftError
from weft.report import files
from weft.report.files import RunFolder, choose_folder, describe_run, safe_name, write_whole
from weft.report.update import Update

UPDATE = Update(1, 1, 8, 0.1, {"loss": (np.ones(1), np.ones(1))})


@given(st.text())
def test_a_name_is_one_safe_path_component(text):
    assert re.fullmatch(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?", safe_name(text))


def test_default_names_never_collide(tmp_path):
    for _ in range(3):
        path = choose_folder(None, algo="ppo", env="a:b/c", root=tmp_path)
        assert not path.exists() and path.name.startswith("ppo-a-b-c-")
        path.mkdir()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_in_use_is_refused(tmp_path):
    assert choose_folder(tmp_path, algo="ppo", env="e") == tmp_path
    assert choose_folder(tmp_path / "new", algo="ppo", env="e") == tmp_path / "new"
    (tmp_path / "old.txt").touch()
    with pytest.raises(WeftError, match="already holds files"):
        choose_folder(tmp_path, algo="ppo", env="e")
    with pytest.raises(WeftError, match="is a file"):
        choose_folder(tmp_path / "old.txt", algo="ppo", env="e")


def test_nothing_is_made_before_the_first_update(tmp_path):
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


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_whole(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"] and path.read_bytes() == b"old"
