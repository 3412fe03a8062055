"""What several pictures show at the same points of space."""
