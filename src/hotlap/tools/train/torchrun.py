"""torchrun as ``--nproc`` starts it: told to stop, it says so in one line, or its processes do, and ends with 130."""

from __future__ import annotations

import logging
import signal
import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    _hear_every_stop_as_one()
    try:
        from torch.distributed.elastic.agent.server import api as agent
        from torch.distributed.elastic.multiprocessing import api as processes
        from torch.distributed.run import main as torchrun

        for module in (agent, processes):
            module.logger.addFilter(_is_news)
        torchrun(["--signals-to-handle", "SIGINT", *sys.argv[1:]])
    except KeyboardInterrupt:
        sys.stderr.write("hotlap: interrupted before the training began\n")
    except processes.SignalException:
        pass  # the first process has told what was saved
    else:
        return
    sys.exit(EXIT_INTERRUPTED)


def _hear_every_stop_as_one() -> None:
    """SIGTERM and SIGHUP become SIGINT, which torchrun then hands on to its processes' groups.

    Workers of a loader are in those groups, and torch lets them die of SIGTERM before a checkpoint is saved.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it; torchrun does not
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def _is_news(entry: logging.LogRecord) -> bool:
    """Not that processes are told to stop, a line for each: whoever stopped them knows, or a failure is told."""
    return "death signal" not in entry.msg and "closing signal" not in entry.msg


if __name__ == "__main__":
    main()
