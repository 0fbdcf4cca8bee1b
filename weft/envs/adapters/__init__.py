"""Adapters: one module for each environment library, which turns its environments into an `Env`.

An adapter has two functions, `make(id, num_envs, **options)` and `available()`, and one entry in
`weft.envs.registry.ADAPTERS`. Libraries written in JAX (`gymnax`, `brax`) implement `Env` themselves; libraries that
run on the host (`gymnasium`, `envpool`) make pools, and `host` turns a pool into an `Env`.
"""
