"""Scenes from disk: which reader a folder asks for, and the types that all of them give back."""

from __future__ import annotations

from hotlap.data.pinhole import Lens, Pinhole
from hotlap.data.view import LoadedView, Scene, View

__all__ = ["Lens", "LoadedView", "Pinhole", "Scene", "View"]
