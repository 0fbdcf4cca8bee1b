"""Layouts: invalid ones are refused, and valid ones print their roles."""

import pytest

from weft import Layout, Role
from weft.errors import WeftError
from weft.layout.catalogue import LAYOUTS


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ((), "no roles: give at least one"),
        ((Role("one", ("a",)), Role("one", ("b",))), "names role 'one' more than once"),
        ((Role("one", ("a",)), Role("two", ("a",))), "names fragment 'a' more than once"),
        ((Role("one", ("a", "a")),), "names fragment 'a' more than once"),
        ((Role("one", ()),), "name the fragments it runs"),
        ((Role("one", "act"),), "in a tuple"),  # type: ignore[arg-type]
        ((Role("one", ("a",), replicas=0),), "replicas=0"),
        ((Role("one", ("a",), devices=-1),), "devices=-1"),
        ((Role("one", ("a",), replicas=1.5),), "replicas=1.5"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_layout_is_refused(roles: tuple[Role, ...], message: str) -> None:
    with pytest.raises(WeftError, match=message):
        Layout(*roles)


def test_the_batch_divisor_counts_replicas_and_devices() -> None:
    assert Role("one", ("a",), replicas=3, devices=2).batch_divisor == 6


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_synchronous_form_of_a_layout_has_its_roles_and_nothing_asynchronous(name: str) -> None:
    layout = LAYOUTS[name]()
    synchronous = layout.synchronous()
    assert (synchronous.lanes, synchronous.registers, synchronous.max_lag) == (0, (), None)
    assert not any(role.free or role.apart or role.wait or role.batch > 1 for role in synchronous.roles)
    placed = [(role.name, role.runs, role.replicas, role.devices) for role in layout.roles]
    assert [(role.name, role.runs, role.replicas, role.devices) for role in synchronous.roles] == placed


def test_a_layout_prints_its_roles() -> None:
    layout = Layout(Role("one", ("a", "b"), replicas=2), Role("two", ("*",), devices=4))
    assert str(layout) == "one x2 {a, b} | two on 4 devices {*}"
    assert layout.placement == {"a": "one", "b": "one", "*": "two"}
    assert layout.role("two").devices == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_lag": 1}, r"max_lag=1 bounds .* no registers: add registers=\[\('learner', reader\)\]"),
        ({"registers": [("learner", "unknown")]}, "the second another role of the layout"),
    ],
)
def test_an_option_that_would_bound_nothing_is_refused(options: dict, message: str) -> None:
    roles = Role("actor", ("env",), replicas=2), Role("learner", ("learn",), take=1)
    with pytest.raises(WeftError, match=message):
        Layout(*roles, **options)


def test_replicas_that_would_become_a_single_lane_are_refused() -> None:
    teacher, learner = Role("teacher", ("teach",)), Role("learner", ("learn",), take=1)
    with pytest.raises(WeftError, match="teacher has one replica, so all 4 replicas of actor would be a single lane"):
        Layout(Role("actor", ("env",), replicas=4), teacher, learner)
    assert Layout(Role("actor", ("env",)), teacher, learner).lanes == 1
