"""Settings are read from text by the type of their field, and other text is rejected with a one-line error."""

import contextlib
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.algorithm import Algorithm
from weft.errors import WeftError
from weft.settings import configure, read_value


@dataclass(frozen=True, kw_only=True)
class Example(Algorithm):
    lr: float = 1e-3
    shared: bool = False
    title: str | None = None
    hidden: tuple[int, ...] = (64, 64)
    window: tuple[int, float] = (1, 0.5)
    schedule: Literal["linear", "constant"] = "linear"
    clip: float | None = 0.2
    table: dict[str, int] | None = None

    def init(self, env, key): ...

    def step(self, env, state): ...


@given(
    lr=st.floats(allow_nan=False),
    shared=st.booleans(),
    hidden=st.lists(st.integers(0, 4096), max_size=4).map(tuple),
    num_envs=st.integers(0, 10**9),
    clip=st.none() | st.floats(0, 1),
)
def test_written_settings_are_read_back(**fields):
    texts = {name: ",".join(map(str, value)) if name == "hidden" else str(value) for name, value in fields.items()}
    algo = configure(Example, [f"{name}={text}" for name, text in texts.items()])
    assert algo == Example(**fields)


@pytest.mark.parametrize("kind", [int, float, bool, int | None, tuple[int, ...], Literal["a"], tuple[int, float]])
@given(text=st.text(max_size=8))
def test_any_text_is_either_a_value_or_a_value_error(kind, text):
    with contextlib.suppress(ValueError):
        read_value(text, kind)


@pytest.mark.parametrize(
    ("text", "value"), [("1e6", 10**6), ("64_000", 64_000), (" 7 ", 7), ("-3", -3), ("2.0", 2), ("1.5e1", 15)]
)
def test_whole_numbers(text, value):
    assert read_value(text, int) == value and type(read_value(text, int)) is int


@pytest.mark.parametrize("text", ["1.5", "1e-1", "", "x", "inf", "nan", "1e999999999"])
def test_other_text_is_not_a_whole_number(text):
    with pytest.raises(ValueError):
        read_value(text, int)


def test_without_assignments_all_fields_have_their_defaults():
    assert configure(Example, []) == Example()


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("lrr=1", r"unknown field of Example 'lrr': did you mean 'lr'\?"),
        ("lr", r"--set lr: write field=value"),
        ("lr=fast", r"lr takes a number, not 'fast'"),
        ("lr=nan", r"lr takes a number, not 'nan'"),
        ("num_envs=1.5", r"num_envs takes a whole number, not '1.5'"),
        ("shared=maybe", r"shared takes true or false, not 'maybe'"),
        ("hidden=64,x", r"hidden takes a list like 64,64, where each entry is a whole number, not '64,x'"),
        ("window=1", r"window takes a list"),
        ("schedule=cosine", r"schedule takes one of linear, constant, not 'cosine'"),
        ("clip=", r"clip takes a number or none, not ''"),
        ("table=1", r"cannot be given as text"),
    ],
)
def test_an_error_is_one_line_that_names_the_field_the_value_and_the_type(assignment, message):
    with pytest.raises(WeftError, match=message) as caught:
        configure(Example, [assignment])
    assert "\n" not in str(caught.value)


def test_a_field_given_twice_is_rejected():
    with pytest.raises(WeftError, match="lr twice"):
        configure(Example, ["lr=1", "lr=2"])
