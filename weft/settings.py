"""Parses settings given as text, `field=value`, by the type of the field.

>>> from dataclasses import dataclass
>>> from weft.algorithm import Algorithm
>>> @dataclass(frozen=True, kw_only=True)
... class Example(Algorithm):
...     lr: float = 1e-3
...     hidden: tuple[int, ...] = (64,)
...     clip: float | None = 0.2
...     def init(self, env, key): ...
...     def step(self, env, state): ...
>>> configure(Example, ["lr=3e-4", "hidden=128,128", "clip=none", "num_envs=1e3"])
Example(num_envs=1000, lr=0.0003, hidden=(128, 128), clip=None)
"""

import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

from weft.errors import WeftError, unknown
from weft.modules import import_attribute

if TYPE_CHECKING:
    from weft.algorithm import Algorithm

A = TypeVar("A", bound="Algorithm")

# Environment steps of a training run, if not given.
DEFAULT_STEPS = 500_000


def configure(kind: type[A], assignments: Sequence[str]) -> A:
    """Returns a `kind` with the fields set by `assignments`, each as `field=value`."""
    types_by_field = typing.get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind) if field.init]
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise WeftError(f"--set {assignment}: write field=value, as in --set {known[0]}=16")
        if name not in known:
            raise unknown(f"field of {kind.__name__}", name, known)
        if name in values:
            raise WeftError(f"--set gives {name} twice: give it once")
        values[name] = _read_field(name, text, types_by_field[name])
    return kind(**values)


def read_options(assignments: Sequence[str]) -> dict[str, Any]:
    """Returns options from `name=value`. A value is none, a number, true or false if it reads as one, else text.

    >>> read_options(["workers=2", "timeout=0.5", "is_slippery=false", "vector=workers"])
    {'workers': 2, 'timeout': 0.5, 'is_slippery': False, 'vector': 'workers'}
    """
    options: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            raise WeftError(f"--env-set {assignment}: write option=value, as in --env-set workers=2")
        if name in options:
            raise WeftError(f"--env-set gives {name} twice: give it once")
        # Numbers before bool, because "1" also reads as true.
        options[name] = next(_values(text, (types.NoneType, int, float, bool, str)))
    return options


def read_value(text: str, kind: Any) -> Any:
    """Returns `text` as a value of type `kind`. Raises ValueError if it is not one.

    >>> read_value("64_000", int), read_value("1e6", int), read_value("yes", bool), read_value("none", int | None)
    (64000, 1000000, True, None)
    """
    if kind in _READERS:
        return _READERS[kind](text.strip())
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _read_union(text, parts)
    if origin is tuple:
        return _read_tuple(text, parts)
    if origin is Literal:
        return _read_choice(text, parts)
    if origin is Callable:
        return _read_function(text)
    raise TypeError(f"a {kind} cannot be given as text")


def describe(kind: Any) -> str:
    """Describes the values of type `kind`, for error messages.

    >>> describe(float | None), describe(tuple[int, ...])
    ('a number or none', 'a list like 64,64, where each entry is a whole number')
    """
    if kind in _DESCRIPTIONS:
        return _DESCRIPTIONS[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(part) for part in parts)
    if origin is tuple:
        return f"a list like 64,64, where each entry is {describe(parts[0])}"
    if origin is Literal:
        return "one of " + ", ".join(map(str, parts))
    if origin is Callable:
        return "a function or class as module:attribute"
    return str(kind)


def _values(text: str, kinds: Sequence[Any]) -> Iterator[Any]:
    for kind in kinds:
        with contextlib.suppress(ValueError):
            yield read_value(text, kind)


def _read_field(name: str, text: str, kind: Any) -> Any:
    try:
        return read_value(text, kind)
    except ValueError:
        raise WeftError(f"--set {name}={text}: {name} takes {describe(kind)}, not {text!r}") from None
    except TypeError:
        raise WeftError(f"--set {name}: a {describe(kind)} cannot be given as text; set it from Python") from None


def _read_int(text: str) -> int:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None
    # No setting is above 2**63, and converting "1e999999" to an int would take long.
    if not number.is_finite() or number.adjusted() > 18 or number != number.to_integral_value():
        raise ValueError(text)
    return int(number)


def _read_float(text: str) -> float:
    number = float(text)
    if math.isnan(number):
        raise ValueError(text)
    return number


def _read_bool(text: str) -> bool:
    for value, spellings in ((True, ("true", "yes", "1")), (False, ("false", "no", "0"))):
        if text.lower() in spellings:
            return value
    raise ValueError(text)


def _read_none(text: str) -> None:
    if text.lower() != "none":
        raise ValueError(text)


def _read_union(text: str, parts: tuple[Any, ...]) -> Any:
    # None first: otherwise the text "none" would be read as a string if the other part is one.
    for part in sorted(parts, key=lambda part: part is not types.NoneType):
        try:
            return read_value(text, part)
        except ValueError:
            continue
    raise ValueError(text)


def _read_tuple(text: str, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    items = [item for item in text.strip().strip("()").split(",") if item.strip()]
    kinds = [parts[0]] * len(items) if parts[-1] is Ellipsis else list(parts)
    if len(kinds) != len(items):
        raise ValueError(text)
    return tuple(read_value(item, kind) for item, kind in zip(items, kinds, strict=True))


def _read_function(text: str) -> Callable[..., Any]:
    value = import_attribute(text, "a function or class")
    if not callable(value):
        raise ValueError(text)
    return value


def _read_choice(text: str, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if str(choice) == text.strip():
            return choice
    raise ValueError(text)


_READERS: dict[Any, Callable[[str], Any]] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: str,
    types.NoneType: _read_none,
}
_DESCRIPTIONS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "none"}
