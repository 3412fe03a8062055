"""Training that never loses a step."""
