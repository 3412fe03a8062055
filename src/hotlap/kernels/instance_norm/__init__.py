"""Norms of each channel of each image, with what follows them, in two passes over memory."""
