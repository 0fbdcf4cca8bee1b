"""Errors that a user can act on: each says what was given, what was expected and what to do."""

import difflib
from collections.abc import Iterable


class WeftError(Exception):
    """An error in the user's input. The message says what is wrong, why, and how to fix it."""


def unknown(kind: str, given: str, known: Iterable[str]) -> WeftError:
    """The error for a name that does not exist. It suggests the nearest names that do.

    >>> print(unknown("layout", "acotrs", ["fused", "actors", "seed"]))
    unknown layout 'acotrs': did you mean 'actors'? (known: actors, fused, seed)
    """
    names = sorted(known)
    hint = " ".join(filter(None, (nearest(given, names), f"(known: {listed(names)})")))
    return WeftError(f"unknown {kind} {given!r}: {hint}")


def nearest(given: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """A question that suggests the names most similar to the one given; empty if no name is similar."""
    near = difflib.get_close_matches(given, sorted(known), n=3, cutoff=cutoff)
    return "did you mean " + " or ".join(repr(name) for name in near) + "?" if near else ""


def listed(known: Iterable[str]) -> str:
    """The first twelve names, sorted."""
    names = sorted(known)
    return ", ".join(names) if len(names) <= 12 else ", ".join(names[:12]) + ", ..."
