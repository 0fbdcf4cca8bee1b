"""Medians with their range over the rounds of a benchmark, as numbers and as text for its tables."""

import statistics


def summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratio(values: list[float], baseline: list[float]) -> dict[str, float]:
    """Divides round by round, so that a load on the machine affects both sides of a ratio alike."""
    return summary([value / base for value, base in zip(values, baseline, strict=True)])


def spread(values: dict[str, float]) -> str:
    return f"{values['median']:.3g} ({values['min']:.3g} to {values['max']:.3g})"


def thousands(values: dict[str, float]) -> str:
    return f"{values['median']:,.0f} ({values['min']:,.0f} to {values['max']:,.0f})"
