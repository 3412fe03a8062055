"""Processes that lead a group of their own: what they leave behind can be ended with them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess


def kill_group(group: int) -> None:
    """Kills a process group that we started; one that is gone already is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


class Leader(subprocess.Popen[str]):
    """A process that leads a group of its own; whoever has waited for it knows that nothing of the group is left."""

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        kill_group(self.pid)
        return code
