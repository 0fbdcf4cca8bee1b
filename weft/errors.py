"""Errors that a user can act on: what was given, what was expected, what to do."""

import difflib
from collections.abc import Iterable


class WeftError(Exception):
    """Something a user gave cannot work; the message says what, why and how to mend it."""


def unknown(kind: str, given: str, known: Iterable[str]) -> WeftError:
    """The error for a name that does not exist, with the nearest names that do.

    >>> print(unknown("layout", "acotrs", ["fused", "actors", "seed"]))
    unknown layout 'acotrs': did you mean 'actors'? (known: actors, fused, seed)
    """
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    hint = "did you mean " + " or ".join(repr(name) for name in near) + "? " if near else ""
    listing = ", ".join(names) if len(names) <= 12 else ", ".join(names[:12]) + ", ..."
    return WeftError(f"unknown {kind} {given!r}: {hint}(known: {listing})")
