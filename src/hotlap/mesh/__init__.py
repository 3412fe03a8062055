"""Meshes from pictures."""
