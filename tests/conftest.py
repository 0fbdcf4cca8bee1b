"""Every test runs with warnings as errors, strict dtype promotion, four CPU devices and one source of randomness."""

import os

# Devices are counted when jax first meets its backend, so this stands before any import of jax.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile(
    "default",
    max_examples=int(os.environ.get("WEFT_EXAMPLES", "200")),
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("default")


@pytest.fixture
def key() -> jax.Array:
    """The one source of randomness of a test."""
    return jax.random.key(0)
