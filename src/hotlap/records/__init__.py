"""What a run leaves behind, as JSON that is enough to repeat and to judge it."""
