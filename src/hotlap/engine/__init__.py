"""The training engine: exact steps, loaders, checkpoints, metrics."""
