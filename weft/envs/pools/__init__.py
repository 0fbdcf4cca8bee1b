"""Pools: several environments in plain Python and NumPy, stepped together.

`pool` defines the interface. The three kinds of pool are `in_process_pool` (one after another in this process),
`worker_pool` (in several processes, with shared memory) and `vector_pool` (a vector environment of another library).
"""
