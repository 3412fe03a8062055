"""The distance between two clouds of points, from each point to the nearest of the other cloud."""
