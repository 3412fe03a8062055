"""Training that never loses a step: exact accumulation, recovery, checkpoints, loaders."""
