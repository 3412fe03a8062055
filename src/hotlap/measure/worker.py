"""The process in which things are measured: reads one job, does it, writes one answer, ends with its parent.

Its stdout belongs to the answer; whatever the workload prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from typing import Any

from hotlap.base.channel import take_stdout
from hotlap.base.errors import HotlapError, OutOfMemory, TargetError
from hotlap.base.process_group import kill_group
from hotlap.base.raised import first_line, is_lonely, lonely_value, their_line
from hotlap.device.memory import is_out_of_memory
from hotlap.measure.gate import IN_FLOAT64
from hotlap.measure.jobs import find_job
from hotlap.measure.process import freeze_error
from hotlap.records.codec import encode


def main() -> None:
    channel = take_stdout()
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def say(message: dict[str, Any]) -> None:
        channel.write(json.dumps(encode(message)) + "\n")

    def listen(text: str, done: float, total: float) -> None:
        say({"progress": text, "done": done, "total": total})

    try:
        say({"result": find_job(job["job"])(job, listen)})
    except HotlapError as error:
        say({"error": freeze_error(error)})
    except Exception as error:  # noqa: BLE001 - whatever the user's model raised is told to the parent as an answer
        traceback.print_exc()
        say({"error": freeze_error(explain(error, job))})
    channel.flush()
    os._exit(0)  # libraries that crash while shutting down must not spoil an answer already given


def _end_with_parent() -> None:
    # Not through sys.stdin: its lock would be held here for ever, and a process forked meanwhile, such as a loader's,
    # closes sys.stdin first of all.
    while os.read(0, 4096):
        pass
    if os.getpgrp() == os.getpid():
        kill_group(os.getpid())  # with what it started
    os._exit(1)


def explain(error: Exception, job: dict[str, Any]) -> HotlapError:
    """An exception of the user's model as one of ours."""
    if is_out_of_memory(error):
        return out_of_memory(error, job.get("batch"), job.get("arm", ""))
    said = f"raised {type(error).__name__} while it was measured"
    where = f"{first_line(error)} {their_line(error)}"
    if IN_FLOAT64 in getattr(error, "__notes__", ()):
        return TargetError(
            f"target {job.get('target')!r} {said} {IN_FLOAT64}: {where}. In float32 it runs",
            remedy="Let tensors that it makes take the dtype of its input, as torch.zeros(n, dtype=x.dtype), and casts "
            "too; 'hotlap bench --no-gate' measures without the gate",
        )
    if is_lonely(error):
        return lonely_value(str(job.get("target")), error)
    inputs = " ".join(f"--input {text}" for text in job.get("inputs") or ())
    check = f"Does {inputs} fit it (3x224x224; for token ids, 128:int64:32000)? If so, run" if inputs else "Run"
    return TargetError(
        f"target {job.get('target')!r} {said}: {where}{_with_samples(job)}",
        remedy=f"{check} one step of it by hand in Python to see the whole trace",
    )


def _with_samples(job: dict[str, Any]) -> str:
    """How many samples the model was given, which a model may refuse; '' where the job does not say."""
    if not job.get("batch"):
        return ""
    of_gate = ", the numeric gate's (bench and tune have --gate-batch)" if job.get("job") == "gate" else ""
    tail = f" and a ragged tail of {job['tail']}" if job.get("tail") else ""
    return f", with a batch of {job['batch']}{of_gate}{tail}"


def out_of_memory(error: Exception, batch: Any, arm: str) -> OutOfMemory:
    where = f" on arm {arm!r}" if arm else ""
    return OutOfMemory(
        f"batch = {batch} does not fit in memory{where}: {first_line(error)}",
        remedy="Take a smaller --batch, a half-precision arm such as cuda:bf16, or a smaller input",
    )


if __name__ == "__main__":
    main()
