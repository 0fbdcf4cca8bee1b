import gymnax
import pytest

from weft.envs import available, make, resolve
from weft.errors import WeftError


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("gymnax:CartPole-v0", "'CartPole-v1'"),
        ("gymnx:CartPole-v1", "'gymnax'"),
        ("CartPole-v7", "'gymnax:CartPole-v1'"),
        ("gymnax:MNISTBandit-bsuite", "'SimpleBandit-bsuite'"),
    ],
)
def test_an_unknown_name_is_rejected_with_a_suggestion(spec, hint):
    with pytest.raises(WeftError, match=hint):
        make(spec, 1)


def test_at_least_one_environment_is_needed():
    with pytest.raises(WeftError, match="num_envs is 0"):
        make("gymnax:CartPole-v1", 0)


def test_every_gymnax_environment_is_available_except_those_that_download_data():
    known = {f"gymnax:{env_id}" for env_id in gymnax.registered_envs}
    assert known - set(available()) == {"gymnax:MNISTBandit-bsuite"}
    assert all(line and "\n" not in line for line in available().values())


def test_a_name_without_a_family_is_resolved_in_the_first_family_that_has_it():
    assert resolve("CartPole-v1") == "gymnax:CartPole-v1"
    assert resolve("HalfCheetah-v5") == "gym:HalfCheetah-v5"
    assert resolve("Pong-v5") == "envpool:Pong-v5"
    assert make("CartPole-v1", 2) == make("gymnax:CartPole-v1", 2)


def test_invalid_options_are_rejected():
    with pytest.raises(WeftError, match="options"):
        make("gymnax:CartPole-v1", 2, workers=2)
    with pytest.raises(WeftError, match="vector"):
        make("gym:CartPole-v1", 2, vector="quick")
