"""Cached programs are reused, but not across versions or kinds of processor, and cache errors never end a run."""

import os
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jaxlib.version
import pytest
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from weft.runtime import compilation_cache
from weft.runtime.compilation_cache import OFF, VARIABLE, choose_root, enable, program_folder, remove_oldest

# Compiles one program and prints how often JAX asked for a program, found it, and stored it.
PROGRAM = """
import collections, warnings
import jax
from weft.runtime.compilation_cache import enable
events = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event.rpartition("/")[2]]))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    enable()
    assert float(jax.jit(lambda x: x * 2.0 + 1.0)(3.0)) == 7.0
print(events["cache_hits"], events["cache_misses"], len(caught), *(str(each.message) for each in caught))
"""


def run_program(**variables: str) -> list[str]:
    """Cache hits, cache misses and warnings of a process that compiles one program."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMP", "JAX_PERS"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment | variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(maxsplit=3)


@pytest.fixture(scope="module")
def events() -> Counter[str]:
    """How often JAX reported each event."""
    counted: Counter[str] = Counter()
    jax.monitoring.register_event_listener(lambda event, **_: counted.update([event.rpartition("/")[2]]))
    return counted


@pytest.fixture
def compile_in(jax_has_no_cache: None, events: Counter[str]) -> Callable[[Path], tuple[int, int]]:
    """Compiles one program with a cache in a folder, as a new run would; returns the cache's hits and misses."""

    def compile_in(folder: Path) -> tuple[int, int]:
        enable(OFF)
        enable(folder)
        before = events.copy()
        assert float(jax.jit(lambda x: x * 3.0 + 1.0)(2.0)) == 7.0
        return tuple(events[name] - before[name] for name in ("cache_hits", "cache_misses"))

    return compile_in


def entries(root: Path) -> list[Path]:
    return sorted(root.rglob("*-cache"))


@pytest.fixture
def jax_has_no_cache() -> Iterator[None]:
    """Removes the cache folder from JAX's settings, and restores them after the test."""
    names = ("compilation_cache_dir", "persistent_cache_min_compile_time_secs", "persistent_cache_min_entry_size_bytes")
    before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    jax_cache.reset_cache()
    yield
    enable(OFF)
    for name, value in before.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()


def test_a_second_process_reuses_the_programs_of_the_first(tmp_path):
    first, second = (run_program(WEFT_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert first == ["0", "1", "0"] and second == ["1", "0", "0"]
    (entry,) = entries(tmp_path)
    assert entry.parent == tmp_path / program_folder()
    assert entry.parent.stat().st_mode & 0o077 == 0, "other users must not be able to place programs"


def test_the_cache_is_in_the_users_cache_directory(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert choose_root(None) == tmp_path / "weft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert choose_root(None) == tmp_path / ".cache" / "weft"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "moved"))
    assert choose_root(None) == tmp_path / "moved"
    assert choose_root("~/given") == tmp_path / "given" and choose_root(OFF) is None
    monkeypatch.setenv(VARIABLE, OFF)
    assert choose_root(None) is None


@pytest.mark.usefixtures("jax_has_no_cache")
def test_the_cache_can_be_switched_off(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, OFF)
    assert enable() is None and jax.config.jax_compilation_cache_dir is None
    assert not list(tmp_path.iterdir())


def test_a_folder_given_to_jax_is_not_changed(tmp_path):
    own, default = tmp_path / "own", tmp_path / "default"
    given = {"JAX_COMPILATION_CACHE_DIR": str(own), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    run_program(**given, XDG_CACHE_HOME=str(default))
    assert [path.parent for path in entries(tmp_path)] == [own]


@pytest.mark.usefixtures("jax_has_no_cache")
def test_a_folder_that_weft_chose_can_be_changed(tmp_path):
    assert enable(tmp_path / "one") == tmp_path / "one" / program_folder()
    assert enable(tmp_path / "two") == tmp_path / "two" / program_folder()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "two" / program_folder())
    assert enable(OFF) is None and jax.config.jax_compilation_cache_dir is None


@pytest.mark.parametrize(
    ("module", "attribute", "other"),
    [
        (jaxlib.version, "__version__", "0.0.1"),
        (jax, "__version__", "0.0.1"),
        (compilation_cache.platform, "python_version_tuple", lambda: ("3", "99", "0")),
        (compilation_cache.platform, "machine", lambda: "riscv64"),
        (compilation_cache, "describe_processor", lambda: ["flags: sse2"]),
    ],
)
def test_another_version_or_processor_has_another_folder(monkeypatch, module, attribute, other):
    original = program_folder()
    monkeypatch.setattr(module, attribute, other)
    assert program_folder() != original


def test_processors_with_different_instruction_sets_have_different_descriptions(monkeypatch, tmp_path):
    described = []
    for flags in ("sse2 avx2", "sse2 avx2 avx512f"):
        path = tmp_path / "cpuinfo"
        path.write_text(f"processor\t: 0\ncpu MHz\t\t: 1200\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
        monkeypatch.setattr(compilation_cache, "CPU_INFO", path)
        described.append(compilation_cache.describe_processor())
    assert described[0] != described[1]
    assert "MHz" not in str(described)


def test_a_program_of_another_processor_is_not_reused(compile_in, monkeypatch, tmp_path):
    assert compile_in(tmp_path) == (0, 1)
    assert compile_in(tmp_path) == (1, 0)
    monkeypatch.setattr(compilation_cache, "describe_processor", lambda: ["flags: sse2"])
    assert compile_in(tmp_path) == (0, 1)
    assert len({entry.parent for entry in entries(tmp_path)}) == 2


@pytest.mark.parametrize("damage", ["truncated", "empty", "overwritten"])
def test_a_damaged_program_is_compiled_again_and_replaced(compile_in, tmp_path, damage):
    assert compile_in(tmp_path) == (0, 1)
    (entry,) = entries(tmp_path)
    whole = entry.read_bytes()
    entry.write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "overwritten": b"\0" * len(whole)}[damage])
    assert compile_in(tmp_path) == (0, 1)
    assert compile_in(tmp_path) == (1, 0)


def test_several_processes_can_share_a_folder(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: run_program(WEFT_CACHE_DIR=str(tmp_path)), range(2)))
    assert all(warnings == "0" for _, _, warnings in results)
    assert run_program(WEFT_CACHE_DIR=str(tmp_path)) == ["1", "0", "0"]


@pytest.mark.usefixtures("jax_has_no_cache")
def test_a_folder_that_cannot_be_written_costs_one_warning(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match=f"not cached: .* cannot be written .*Set {VARIABLE}") as caught:
        assert enable(tmp_path / "file") is None
    assert len(caught) == 1 and jax.config.jax_compilation_cache_dir is None
    assert float(jax.jit(lambda x: x - 4.0)(4.0)) == 0.0


@pytest.mark.usefixtures("jax_has_no_cache")
def test_a_full_disk_costs_one_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(compilation_cache.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.warns(UserWarning, match="is on a full disk"):
        assert enable(tmp_path) is None


@pytest.mark.usefixtures("jax_has_no_cache")
def test_a_folder_of_another_user_is_not_trusted(monkeypatch, tmp_path):
    monkeypatch.setattr(compilation_cache.os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert enable(tmp_path) is None


def test_a_folder_that_fails_during_a_run_is_no_error(compile_in, tmp_path):
    compile_in(tmp_path)
    folder = tmp_path / program_folder()
    shutil.rmtree(folder)
    folder.touch()
    with warnings.catch_warnings(record=True) as caught:
        assert float(jax.jit(lambda x: x * 5.0 - 1.0)(1.0)) == 4.0
    assert not caught and not entries(tmp_path)


def test_the_least_recently_used_programs_are_removed_first(tmp_path):
    for number, name in enumerate(["new/c-cache", "old/a-cache", "old/b-cache"]):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)
        os.utime(path, (1000 + 10 * number, 1000))
    remove_oldest(tmp_path, 300)
    assert len(entries(tmp_path)) == 3
    remove_oldest(tmp_path, 250)
    assert [path.name for path in entries(tmp_path)] == ["a-cache", "b-cache"]
    remove_oldest(tmp_path, 0)
    assert not entries(tmp_path)
