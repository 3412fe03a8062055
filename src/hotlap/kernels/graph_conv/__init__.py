"""Graph convolutions on a mesh that does not change."""
