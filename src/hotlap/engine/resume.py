"""The parts of a training to a checkpoint and back; refuses one that belongs to another run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotlap.base.errors import UsageError
from hotlap.base.raised import misfit
from hotlap.engine.checkpoint import Checkpoint
from hotlap.engine.parts import Parts


def state_of(parts: Parts) -> dict[str, Any]:
    """All that the parts know beside their weights, and what they must be built with to take it up again."""
    return {
        "schedule": parts.schedule.state_dict(),
        "scaler": parts.step.scaler.state_dict() if parts.step.scaler is not None else {},
        "ema": parts.ema.state_dict() if parts.ema is not None else {},
        "split": parts.step.state_dict(),
        "batch": parts.loader.batch,
        "num_samples": parts.loader.num_samples,
    }


def load_parts(parts: Parts, checkpoint: Checkpoint, *, seed: int, micro: int | None) -> None:
    """Takes up a checkpoint. What the settings say now wins over it: learning rate, fused, micro."""
    state = checkpoint.state
    _check_same_run(state, parts, seed)
    fused = [group.get("fused") for group in parts.optimizer.param_groups]
    try:
        parts.load_weights(state)
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"the checkpoint {str(checkpoint.path)!r} does not fit the model: {misfit(error)}",
            remedy="Leave the target and its workload options as they were in the run to resume",
        ) from error
    for group, value in zip(parts.optimizer.param_groups, fused, strict=True):
        if "fused" in group:
            group["fused"] = value
    parts.schedule.load_state_dict(state["schedule"])
    if parts.step.scaler is not None and state["scaler"]:
        parts.step.scaler.load_state_dict(state["scaler"])
    if parts.ema is not None and state["ema"]:
        parts.ema.load_state_dict(state["ema"])
    split = state["split"]
    if split["largest"] != micro:  # another --micro than before: it is what the search begins with
        split = {**parts.step.state_dict(), "recomputing": split["recomputing"]}
    parts.step.load_state_dict(split)


def _check_same_run(state: Mapping[str, Any], parts: Parts, seed: int) -> None:
    """The order of samples follows from these; with another one the position would mean other samples."""
    for name, now in (("batch", parts.loader.batch), ("seed", seed)):
        if state[name] != now:
            raise UsageError(
                f"{name} = {now}, but the run to resume has {name} = {state[name]}",
                remedy=f"Leave --{name} as it was; a run with another one is a new run",
            )
    if state["num_samples"] != parts.loader.num_samples:
        raise UsageError(
            f"the training data holds {parts.loader.num_samples} samples, but that of the run to resume held "
            f"{state['num_samples']}",
            remedy="Bring the data back to what it was, or start a new run",
        )
