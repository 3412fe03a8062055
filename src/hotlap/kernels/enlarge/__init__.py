"""Small maps enlarged and added to a large one, in one pass over it."""
