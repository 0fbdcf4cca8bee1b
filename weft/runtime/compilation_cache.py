"""Caches compiled programs on disk, so that a run does not compile a program again.

JAX reads and writes the cache; this module chooses the folder, bounds its size and removes damaged files. The folder is
`WEFT_CACHE_DIR`, or `weft` in the user's cache directory; `off` switches the cache off. A folder that the user gave to
JAX itself (`JAX_COMPILATION_CACHE_DIR`, `jax.config`) is left as it is.

JAX's key of a program covers its code, the compiler's options and the version of jaxlib. It does not promise to cover
the processor that the machine code is for, so each version and each kind of processor has a subfolder of its own.

>>> choose_root("off") is None
True
>>> choose_root("/scratch/programs")
PosixPath('/scratch/programs')
"""

import hashlib
import os
import platform
import shutil
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import jax
import jaxlib.version
from jax.experimental.compilation_cache import compilation_cache as jax_cache

VARIABLE = "WEFT_CACHE_DIR"
OFF = "off"
MAX_BYTES = 2**30
"""Above this size the least recently used programs are removed, once at the start of a run."""
MIN_FREE_BYTES = 2**26

CPU_INFO = Path("/proc/cpuinfo")
# The lines of /proc/cpuinfo that name a processor and its instruction set, on x86 and on ARM.
CPU_FIELDS = ("vendor_id", "cpu family", "model", "model name", "flags", "Features")
CPU_FIELDS += ("CPU implementer", "CPU architecture", "CPU variant", "CPU part")

ENTRY_SUFFIX = "-cache"
LAST_CHECK = ".checked"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_enabled: Path | None = None
"""The folder that `enable` gave to JAX."""


def enable(setting: str | Path | None = None) -> Path | None:
    """Caches compiled programs in the folder `setting`, or in the default one. Returns the folder in use, if any.

    If the folder cannot be used, the run gets a warning and compiles without a cache.
    """
    global _enabled
    explicit = setting is not None or VARIABLE in os.environ
    in_use = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if not explicit and in_use is not None and in_use != str(_enabled):
        return None
    root = choose_root(setting)
    folder = root and root / program_folder()
    if folder == _enabled:
        return folder
    problem = _prepare(folder) if folder else None
    if problem:
        warnings.warn(
            f"compiled programs are not cached: {folder} {problem}. Set {VARIABLE} to another folder, or to {OFF}",
            stacklevel=2,
        )
        folder = None
    if root and folder:
        remove_damaged(folder)
        remove_oldest(root, MAX_BYTES)
    _give_to_jax(folder)
    return folder


def choose_root(setting: str | Path | None) -> Path | None:
    """Returns the folder that holds the caches of all versions and machines, or None if the cache is off."""
    setting = setting or os.environ.get(VARIABLE)
    if setting == OFF:
        return None
    if setting:
        return Path(setting).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"


def program_folder() -> str:
    """Returns the name of the subfolder for the installed versions on this kind of processor."""
    # The version of Python decides which compression JAX uses, and JAX's key does not always say which.
    properties = [jax.__version__, ".".join(platform.python_version_tuple()[:2]), *describe_processor()]
    digest = hashlib.sha256("\n".join(properties).encode()).hexdigest()
    return f"jaxlib-{jaxlib.version.__version__}-{platform.machine()}-{digest[:12]}"


def describe_processor() -> list[str]:
    """Returns the properties of the processor that decide which machine code it can run."""
    described = [platform.system(), platform.machine(), platform.processor()]
    try:
        first = CPU_INFO.read_text().partition("\n\n")[0]
    except OSError:
        return described
    return described + [line for line in first.splitlines() if line.partition(":")[0].strip() in CPU_FIELDS]


def remove_damaged(folder: Path) -> None:
    """Removes incompletely written programs, which JAX neither loads nor replaces.

    Only files newer than the last check are read. A file that another process is writing may be removed too. That
    program is then compiled once more.
    """
    marker, now = folder / LAST_CHECK, time.time()
    last = marker.stat().st_mtime if marker.exists() else 0.0
    for path, stat in _files(folder):
        if path.name.endswith(ENTRY_SUFFIX) and stat.st_mtime >= last and not _is_complete(path):
            path.unlink(missing_ok=True)
    marker.touch()
    # File systems have coarse clocks, so files written at about this time are checked again next time.
    os.utime(marker, (now - 2.0, now - 2.0))


def remove_oldest(root: Path, limit: int) -> None:
    """Removes the least recently used files of all versions and machines until at most `limit` bytes are left."""
    used = [(max(stat.st_atime, stat.st_mtime), stat.st_size, path) for path, stat in _files(root)]
    total = sum(size for _, size, _ in used)
    for _, size, path in sorted(used):
        if total <= limit:
            return
        path.unlink(missing_ok=True)
        total -= size


def _give_to_jax(folder: Path | None) -> None:
    global _enabled
    if folder is None and _enabled is None:
        return
    jax.config.update("jax_compilation_cache_dir", folder and str(folder))
    jax_cache.reset_cache()
    _enabled = folder
    if folder is None:
        return
    # Small programs compile in milliseconds and load in one: storing them all is measured to be fastest.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # JAX warns for each program that it cannot read or write, for example on a full disk, and compiles it anyway.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning)


def _prepare(folder: Path) -> str | None:
    """Creates and tests the folder. Returns the reason if it cannot be used."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
        free, owner = shutil.disk_usage(folder).free, folder.stat().st_uid
    except OSError as error:
        return f"cannot be written ({error.strerror})"
    if free < MIN_FREE_BYTES:
        return "is on a full disk"
    if hasattr(os, "getuid") and owner != os.getuid():
        # Programs in the cache are executed, so another user must not be able to place them there.
        return "belongs to another user"
    return None


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields the cached files under a folder. Another process may remove some meanwhile."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if name.startswith("."):
                continue
            try:
                yield path, path.stat()
            except FileNotFoundError:
                continue


def _is_complete(path: Path) -> bool:
    """Whether a compressed program can be read to its end. Only zlib, which JAX uses by default, is checked."""
    try:
        data = path.read_bytes()
        if not data.startswith(ZSTD_MAGIC):
            zlib.decompress(data)
    except FileNotFoundError:
        return True
    except zlib.error:
        return False
    return True
