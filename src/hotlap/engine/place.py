"""Where this process stands among those that torchrun started; known without importing torch."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from hotlap.base.errors import EnvironmentUnusable

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
LAUNCHED = "HOTLAP_IS_LAUNCHED"
"""Set where hotlap itself started torchrun, so that what it has said of the command line is not said again."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """This process's place among those that torchrun started."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    run_id: str = ""
    """The same for all processes of one torchrun, and for those that it starts again; "none" where nobody chose one."""
    num_restarts: int = 0
    """How often torchrun has started all processes again."""

    @property
    def key(self) -> str:
        """A name for this torchrun's run; where nobody chose one, its process on this host stands for it."""
        chosen = self.run_id if self.has_name else f"{socket.gethostname()}-{os.getppid()}"
        return re.sub(r"[^A-Za-z0-9._-]+", "-", chosen)

    @property
    def has_name(self) -> bool:
        return self.run_id not in ("", "none")


def find_place(environ: Mapping[str, str] = os.environ) -> Place | None:
    """The place that torchrun's variables give this process; None outside of torchrun."""
    if "TORCHELASTIC_RUN_ID" not in environ and int(environ.get("WORLD_SIZE", "1")) < 2:
        return None
    missing = [name for name in VARIABLES if name not in environ]
    if missing:
        raise EnvironmentUnusable(
            f"{', '.join(missing)} not set, although WORLD_SIZE = {environ.get('WORLD_SIZE')}",
            expected=f"all of {', '.join(VARIABLES)}, as torchrun sets them",
            remedy="Start through torchrun or with --nproc, or unset WORLD_SIZE to train in one process",
        )
    return Place(
        rank=int(environ["RANK"]),
        size=int(environ["WORLD_SIZE"]),
        local_rank=int(environ["LOCAL_RANK"]),
        local_size=int(environ.get("LOCAL_WORLD_SIZE", "1")),
        run_id=environ.get("TORCHELASTIC_RUN_ID", ""),
        num_restarts=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )
