"""Environments: one interface over several libraries.

- This package holds the interface (`timestep`, `spaces`, `episodes`, `rows`), the lookup by name (`registry`) and
  `world`, the environment of a run.
- `pools` steps several environments that are plain Python and NumPy.
- `adapters` turns the environments of a library into an `Env`, one module for each library.
- `wrappers` changes observations, rewards or episode ends, for any environment.

Adapters may import pools and the interface, never the other way round. The registry imports an adapter when it is
first asked for, so importing this package imports no adapter and no library behind it.
"""

from weft.envs.registry import ADAPTERS, EnvSpec, available, make, resolve

__all__ = ["ADAPTERS", "EnvSpec", "available", "make", "resolve"]
