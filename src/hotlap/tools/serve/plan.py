"""From the settings to a service: which models, on which devices, with which profile."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hotlap.base import events
from hotlap.base.errors import ConfigError, UsageError, did_you_mean
from hotlap.base.events import Emit
from hotlap.device.host import read_host
from hotlap.measure.fingerprint import Question, stored_profile
from hotlap.measure.servable import ModelSpec, Servable
from hotlap.records.tuned import ProfileStore
from hotlap.targets import SERVABLES, check_name, short_name
from hotlap.tools.serve.config import ServeConfig
from hotlap.tools.serve.desk import ProcessDesks
from hotlap.tools.serve.runner import ChildRunner
from hotlap.tools.serve.service import Service, ServiceSettings

MOST_DESKS = 32


def make_servable(spec: ModelSpec) -> Servable:
    """The servable behind a model: one registered for its target, or its workload as it is."""
    if spec.target in SERVABLES:
        made: Servable = SERVABLES.get(spec.target)(spec)
        return made
    from hotlap.measure.served_workload import WorkloadServable

    return WorkloadServable(spec)


def plan_devices(wanted: Sequence[str]) -> list[str]:
    """The devices that are meant, each there: ``auto`` is every GPU, or the CPU."""
    import torch

    from hotlap.device.probe import get_device

    if list(wanted) == ["auto"]:
        return [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else ["cpu"]
    found = [str(get_device(name)) for name in wanted]
    if len(set(found)) < len(found) or not found:
        raise ConfigError(f"device = {','.join(wanted)!r}", expected="auto, or different devices")
    return found


def plan_models(config: ServeConfig, device: str, emit: Emit, store: ProfileStore | None = None) -> list[ModelSpec]:
    """The models with the batch and arm of their tuned profiles; what was found, stale or missing is said."""
    return [_plan(config, spec, device, emit, store) for spec in named_models(config)]


def named_models(config: ServeConfig) -> list[ModelSpec]:
    """The models as they were named, with what belongs to each; a name that stands for nothing is refused."""
    named = dict(_name_and_target(text) for text in config.models)
    if not config.models:
        raise UsageError("no model to serve was named", remedy="Name one, as in 'hotlap serve unet'")
    if len(named) < len(config.models):
        raise UsageError(f"models = {','.join(config.models)!r} names one twice", remedy="Use NAME=TARGET")
    for target in named.values():
        check_name(target)
    weights, inputs = _weights(config.weights, named), _inputs(config.input, named)
    return [
        ModelSpec(
            name=name, target=target, options=config.workload, inputs=inputs[name], weights=weights.get(name, ""),
            arm=config.arm, rows=config.batch or 0,
        )
        for name, target in named.items()
    ]  # fmt: skip


def _name_and_target(text: str) -> tuple[str, str]:
    name, equals, target = text.partition("=")
    target = target if equals else text
    name = name if equals else short_name(target)
    if not name or not target or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UsageError(
            f"model {text!r} has no usable name", expected="TARGET, or NAME=TARGET with letters and digits"
        )
    return name, target


def _weights(given: Sequence[str], named: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals and len(named) == 1:
            name, file = next(iter(named)), text
        if name not in named:
            raise UsageError(f"weights {text!r} are for no model that is served", remedy=did_you_mean(name, named))
        if not Path(file).exists():
            raise UsageError(f"weights = {file!r} of model {name!r} do not exist", expected="a file")
        found[name] = file
    return found


def _inputs(given: Sequence[str], named: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The inputs of each model: its own, given as NAME=SHAPE; without any, those that are given for all."""
    own: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, equals, shape = text.partition("=")
        if equals and name not in named:
            raise UsageError(f"input {text!r} is for no model that is served", remedy=did_you_mean(name, named))
        key, shape = (name, shape) if equals else ("", text)
        own[key] = (*own.get(key, ()), shape)
    return {name: own.get(name, own.get("", ())) for name in named}


def _plan(config: ServeConfig, spec: ModelSpec, device: str, emit: Emit, store: ProfileStore | None) -> ModelSpec:
    name = spec.name
    if not spec.weights:
        emit(events.warn(f"Model {name!r} has no weights: its answers mean nothing. --weights {name}=FILE gives them."))
    if spec.target in SERVABLES and not getattr(SERVABLES.get(spec.target), "takes_arm", True):
        if spec.arm:
            emit(events.warn(f"Model {name!r} is run in one way: arm = {spec.arm!r} is not for it."))
        return dataclasses.replace(spec, arm="")
    if not config.tuned or spec.arm:
        return spec
    tuned = getattr(make_servable(spec), "tuned", None)  # some are tuned under several names
    return (tuned and tuned(device, emit, store)) or _tuned(spec, device, emit, store)


def _tuned(spec: ModelSpec, device: str, emit: Emit, store: ProfileStore | None) -> ModelSpec:
    """The model as the profile of its very target and options says."""
    question = Question(target=spec.target, mode="infer", options=spec.options, inputs=list(spec.inputs), device=device)
    profile, lines = stored_profile(question, emit, store)
    if profile is not None:
        return dataclasses.replace(spec, arm=profile.arm, rows=spec.rows or profile.batch)
    if not lines:
        emit(events.note(f"Model {spec.name!r} was never tuned here. {question.command!r} finds its batch."))
    return spec


def build_service(config: ServeConfig, emit: Emit, store: ProfileStore | None = None) -> Service:
    """The service that the settings describe, not started yet: one process a device, each with every model."""
    devices = plan_devices(config.device)
    specs = plan_models(config, devices[0], emit, store)
    servables = {spec.name: make_servable(spec) for spec in specs}
    num_desks = plan_desks(config, devices, servables.values())
    if num_desks:
        emit(events.note(f"{num_desks} processes decode pictures and finish answers."))
    settings = ServiceSettings(
        max_delay_s=config.max_delay_ms / 1000,
        queue_rows=config.queue_rows,
        deadline_s=config.deadline_s,
        pool_threads=num_desks or config.threads,
    )
    runners = [ChildRunner(device, specs, make_servable) for device in devices]
    desk = ProcessDesks(num_desks, specs, make_servable) if num_desks else None
    return Service(servables, runners, settings, desk=desk)


def plan_desks(config: ServeConfig, devices: Sequence[str], servables: Iterable[Servable]) -> int:
    """How many processes decode and finish: what was asked for, or all cores but a few beside a card that needs it."""
    if config.desks is not None:
        return config.desks
    heavy = any(getattr(servable, "is_heavy", False) for servable in servables)
    on_card = any(device.startswith("cuda") for device in devices)
    spare = read_host().usable_cores - len(devices) - 1  # the door, and the process of each device
    return min(MOST_DESKS, max(1, spare)) if heavy and on_card else 0
