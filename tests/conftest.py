"""Every test runs with warnings as errors, four CPU devices and one source of randomness.

Dtype promotion is strict for the parts that are weft's own arithmetic. It cannot be for whole training loops: optax's
Adam raises a float to an integer count, and most gymnax environments mix floats, integers and booleans.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

# Devices are counted when jax first meets its backend, so this stands before any import of jax.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest

STRICT = ("ops", "nets", "report")

# The same examples every time, so that a change is judged alike everywhere; asked for a number, fresh ones.
hypothesis.settings.register_profile(
    "default",
    max_examples=int(os.environ.get("WEFT_EXAMPLES", "200")),
    deadline=None,
    report_multiple_bugs=False,
    derandomize="WEFT_EXAMPLES" not in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("default")


@pytest.fixture
def key() -> jax.Array:
    """The one source of randomness of a test."""
    return jax.random.key(0)


@pytest.fixture(autouse=True)
def promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Strict dtype promotion in the folders that can have it."""
    strict = any(part in STRICT for part in Path(request.path).relative_to(request.config.rootpath).parts)
    with jax.numpy_dtype_promotion("strict" if strict else "standard"):
        yield


@pytest.fixture(autouse=True, scope="module")
def nothing_compiled_is_kept() -> Iterator[None]:
    """What a module compiled is let go after it: each program holds pages of memory, and a process may have 65,530."""
    yield
    jax.clear_caches()
    gc.collect()
