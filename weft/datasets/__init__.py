"""Datasets of recorded episodes, for offline reinforcement learning.

- `dataset`: a dataset in memory, and its metadata
- `parquet`: writes and reads folders of Parquet files; `arrow` converts their columns
- `minari`: reads Minari's datasets
- `load`: reads either of them
- `episode_writer`: writes the steps of many environments as whole episodes
- `record_wrapper`: an environment wrapper that records every step of a training run
- `dataset_replay`: a dataset as the replay table of an algorithm
"""
