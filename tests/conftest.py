"""Sets up every test: warnings are errors, JAX has four CPU devices, and compiled programs are cached on disk.

Dtype promotion is strict in the tests of weft's own arithmetic. It cannot be strict in whole training loops: optax's
Adam raises a float to an integer count, and most gymnax environments mix floats, integers and booleans.
"""

import gc
import os
import signal
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

# JAX counts its devices when it first uses its backend, so set this before jax is imported.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest

from tests.covering import FULL_SIZE
from weft.layout.catalogue import fused
from weft.runtime.compilation_cache import program_folder, remove_damaged, remove_oldest
from weft.runtime.driver import Plan

# In the order of the time that they take without a cache.
LONGEST_FIRST = ("test_matrix.py", "test_random_programs.py", "test_check.py", "test_dqn.py", "test_matrix_bits.py")
LONGEST_FIRST += ("test_host.py", "test_appo.py", "test_off_policy.py", "test_impala.py", "test_refusals.py")
check_module = import_module("weft.runtime.check")  # The package's `check` is the function.

STRICT = ("ops", "nets", "report")
CACHE = Path(__file__).parents[1] / ".test_cache"
CACHE_BYTES = 2**31

# The same examples in every run, so that the outcome depends on the change alone. WEFT_EXAMPLES=N tries N new ones.
hypothesis.settings.register_profile(
    "default",
    max_examples=int(os.environ.get("WEFT_EXAMPLES", "200")),
    deadline=None,
    report_multiple_bugs=False,
    derandomize="WEFT_EXAMPLES" not in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    """Handle interrupts, and share one cache of compiled programs with the worker processes and started programs."""
    # A shell without job control ignores SIGINT in background jobs, and Python then installs no handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "full: a test that only `make test-all` runs, because others show its property")
    config.addinivalue_line("markers", "optimised: compile the test's programs with all optimisations")
    folder = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or CACHE / program_folder())
    if not hasattr(config, "workerinput"):
        folder.mkdir(parents=True, exist_ok=True)
        remove_damaged(folder)
        remove_oldest(folder, CACHE_BYTES)
    for name, value in {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests marked `full` to `make test-all`. Begin with the longest files, so that no process ends long before
    the other."""
    if not FULL_SIZE:
        items[:] = [item for item in items if item.get_closest_marker("full") is None]
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Compile without most optimisations, unless the test is marked `optimised`. Fixtures of any scope come later.

    Tests that compare the bits of different programs are marked: without optimisations these may round differently.
    """
    jax.config.update("jax_disable_most_optimizations", item.get_closest_marker("optimised") is None)


@pytest.fixture
def key() -> jax.Array:
    """The one source of randomness of a test."""
    return jax.random.key(0)


@pytest.fixture(autouse=True)
def promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Strict dtype promotion in the folders that allow it."""
    strict = any(part in STRICT for part in Path(request.path).relative_to(request.config.rootpath).parts)
    with jax.numpy_dtype_promotion("strict" if strict else "standard"):
        yield


@pytest.fixture(scope="module")
def shared_reference() -> Iterator[None]:
    """Let all comparisons of a module with one fused run share that run's final state."""
    states: dict[Any, Any] = {}
    compute = check_module._final_state

    def final_state(plan: Plan, iterations: int, seed: int) -> Any:
        if plan.layout != fused():
            return compute(plan, iterations, seed)
        run = (plan.algo, plan.env_of, iterations, seed)
        if run not in states:
            states[run] = compute(plan, iterations, seed)
        return states[run]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check_module, "_final_state", final_state)
        yield


@pytest.fixture(autouse=True, scope="module")
def release_compiled_programs() -> Iterator[None]:
    """Release a module's compiled programs after it: each maps pages of memory, and a process may map 65,530."""
    yield
    jax.clear_caches()
    gc.collect()
