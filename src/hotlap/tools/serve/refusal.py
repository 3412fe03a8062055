"""Why a request got no answer, each with what a client can do about it."""

from __future__ import annotations

from hotlap.base.errors import EnvironmentUnusable, HotlapError, UsageError


class QueueFull(HotlapError):
    """The line of a model holds as many rows as it may."""

    def __init__(self, model: str, waiting: int, limit: int, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(
            f"the queue of model {model!r} is full: {waiting} of {limit} rows wait",
            remedy=f"Try again in {retry_after_s:.0f} s",
        )


class TooManyRows(UsageError):
    """A request is larger than the whole queue."""

    def __init__(self, model: str, rows: int, limit: int) -> None:
        super().__init__(
            f"rows = {rows} in one request to model {model!r}", expected=f"at most {limit}", remedy="Send fewer at once"
        )


class DeadlineExceeded(HotlapError):
    """The answer would come, or came, too late."""

    def __init__(self, model: str, waited_s: float) -> None:
        super().__init__(
            f"the deadline of a request to model {model!r} passed after {waited_s:.3g} s",
            remedy="Allow more time, or send less at once",
        )


class ShuttingDown(EnvironmentUnusable):
    """The service takes no more requests."""

    retry_after_s = 5.0

    def __init__(self) -> None:
        super().__init__("the service is shutting down and takes no more requests", remedy="Try again in a moment")


class NotReady(EnvironmentUnusable):
    """The model is still being loaded, or could not be."""

    retry_after_s = 5.0

    def __init__(self, model: str, why: str) -> None:
        super().__init__(f"model {model!r} is not ready: {why}", remedy="Try again in a moment")
