"""Settings: one frozen dataclass a tool, filled from layers, remembering where each value came from.

Precedence, highest first: command line, environment, file, tuned profile, default. A layer is a mapping of field names
to values; text is turned into the field's type, and a wrong name or value is an error that names its source.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import os
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from hotlap.base.errors import ConfigError, did_you_mean

C = TypeVar("C")
ENV_PREFIX = "HOTLAP_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def require_least(settings: Any, **least: float) -> None:
    """Refuses fields that are smaller than they may be, endless or no number; None, where one may be that, is fine."""
    for name, low in least.items():
        value = getattr(settings, name)
        if value is not None and not low <= value < math.inf:
            expected = f"at least {low:g}" + (", and finite" if isinstance(value, float) else "")
            raise ConfigError(f"{name} = {value} is not valid", expected=expected)


class MissingSetting(ConfigError):
    """A setting without a default that nobody has given."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """Values from one source."""

    source: str
    values: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Resolved(Generic[C]):
    """A config and the source of each of its values."""

    config: C
    sources: dict[str, str]


def resolve(cls: type[C], layers: Sequence[Layer]) -> Resolved[C]:
    """The config that ``layers`` (highest first) give; dict fields merge key by key.

    A config with a method ``presets`` may bring in further layers by its own switches, just above the defaults.
    """
    resolved = _fill(cls, layers)
    presets: list[Layer] = getattr(resolved.config, "presets", list)()
    return _fill(cls, [*layers, *presets]) if presets else resolved


def _fill(cls: type[C], layers: Sequence[Layer]) -> Resolved[C]:
    kinds = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in reversed(layers):
        for key, raw in _flatten(layer.values, fields, kinds).items():
            name, _, rest = key.partition(".")
            if name not in fields:
                raise ConfigError(
                    f"unknown setting {key!r} in {layer.source}",
                    remedy=did_you_mean(name, fields),
                )
            if rest:
                if not _is_dict(kinds[name]):
                    raise ConfigError(f"setting {key!r} in {layer.source} has a dot, but {name!r} has no parts")
                values[name] = {**values.get(name, {}), rest: raw}
            else:
                values[name] = coerce(raw, kinds[name], fields[name].metadata.get("flag", name), layer.source)
            sources[key] = layer.source
    missing = [n for n, f in fields.items() if n not in values and _required(f)]
    if missing:
        raise MissingSetting(
            f"setting {missing[0]!r} is missing",
            remedy=f"Give it on the command line, in a file (--config) or as {ENV_PREFIX}{missing[0].upper()}",
        )
    for name in fields:
        if not any(key == name or key.startswith(name + ".") for key in sources):
            sources[name] = "default"
    return Resolved(cls(**values), sources)


def coerce(raw: Any, kind: Any, name: str, source: str) -> Any:
    """``raw`` as a value of type ``kind``; a string such as ``3e-5`` becomes the number it spells."""
    options = [k for k in _union(kind) if k is not type(None)]
    optional = len(options) < len(_union(kind))
    if optional and (raw is None or (isinstance(raw, str) and raw.lower() in ("none", "null", "auto", ""))):
        return None
    for option in options:
        try:
            return _coerce_one(raw, option)
        except (ValueError, TypeError):
            continue
    wanted = " or ".join(describe(option) for option in options)
    raise ConfigError(f"{name} = {raw!r} in {source} is not valid", expected=wanted + (" or none" if optional else ""))


def _coerce_one(raw: Any, kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin is Literal:
        choices = typing.get_args(kind)
        if raw in choices:
            return raw
        raise ValueError
    if kind is bool:
        if isinstance(raw, bool):
            return raw
        text = str(raw).lower()
        if text in _TRUE + _FALSE:
            return text in _TRUE
        raise ValueError
    if kind is int:
        if isinstance(raw, bool) or (isinstance(raw, float) and not raw.is_integer()):
            raise ValueError
        return int(raw)
    if kind is float:
        number = float(raw)
        if isinstance(raw, bool) or math.isnan(number):  # a NaN would pass every comparison with a limit
            raise ValueError
        return number
    if kind is str:
        if isinstance(raw, (dict, list, tuple)):
            raise ValueError
        return str(raw)
    if kind is Path:
        return Path(raw)
    if origin is tuple:
        (item, *_) = typing.get_args(kind)
        parts = [p.strip() for p in raw.split(",") if p.strip()] if isinstance(raw, str) else list(raw)
        return tuple(_coerce_one(part, item) for part in parts)
    if _is_dict(kind):
        if not isinstance(raw, Mapping):
            raise ValueError
        return dict(raw)
    raise TypeError(f"settings do not support {kind}")


def _union(kind: Any) -> list[Any]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return list(typing.get_args(kind))
    return [kind]


def _is_dict(kind: Any) -> bool:
    return kind is dict or typing.get_origin(kind) is dict


def describe(kind: Any) -> str:
    """A type in words a user knows."""
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(str(c) for c in typing.get_args(kind) if c != "")
    if typing.get_origin(kind) is tuple:
        return f"a comma-separated list of {describe(typing.get_args(kind)[0])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    return words.get(kind, "a mapping of names to values" if _is_dict(kind) else str(kind))


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _flatten(values: Mapping[str, Any], fields: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    flags = _flags(fields.values())
    for given, value in values.items():
        key = given.replace("-", "_") if "." not in given else given
        key = flags.get(key, key)
        if key in flat:
            raise ConfigError(f"setting {key!r} is given twice, once as {given!r}")
        if isinstance(value, Mapping) and key in fields and _is_dict(kinds[key]):
            flat.update({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            flat[key] = value
    return flat


def _flags(fields: Iterable[dataclasses.Field[Any]]) -> dict[str, str]:
    """Settings by the name of their flag, where that is another: ``--for`` is the setting ``mode``."""
    return {f.metadata["flag"].replace("-", "_"): f.name for f in fields if "flag" in f.metadata}


def env_layer(cls: type, environ: Mapping[str, str] = os.environ) -> Layer:
    """``HOTLAP_REPEATS=9`` sets ``repeats``; ``HOTLAP_WORKLOAD__SIZE=64`` sets ``workload.size``."""
    fields = dataclasses.fields(cls)
    names = {f.name for f in fields} | set(_flags(fields))
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX):
            continue
        name, _, rest = variable[len(ENV_PREFIX) :].lower().partition("__")
        if name in names:
            values[f"{name}.{rest}" if rest else name] = parse_scalar(text) if rest else text
    return Layer("the environment (HOTLAP_*)", values)


def file_layer(path: Path) -> Layer:
    """The settings of one YAML file."""
    if not path.is_file():
        what = "is no file" if path.exists() else "does not exist"
        raise ConfigError(f"config file {str(path)!r} {what}", remedy="Check the path given to --config")
    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"config file {str(path)!r} is not valid YAML: {error}") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"config file {str(path)!r} holds a {type(data).__name__}", expected="settings as 'name: value'"
        )
    return Layer(f"file {path}", {str(key): value for key, value in data.items()})


def set_layer(assignments: Sequence[str]) -> Layer:
    """``--set a.b=c`` pairs."""
    values = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"--set {assignment!r} is not an assignment", expected="name=value, as in --set workload.size=64"
            )
        # An option of a workload has no type of its own, so its text says what it is, as it would in a file.
        values[key.strip()] = parse_scalar(text.strip()) if "." in key else text.strip()
    return Layer("the command line (--set)", values)


def parse_scalar(text: str) -> Any:
    """Text as the YAML value it spells."""
    try:
        return load_yaml(text)
    except ValueError:
        return text


def load_yaml(text: str) -> Any:
    """YAML in which ``3e-5`` is a number, as people mean it, not the text that YAML 1.1 makes of it.

    Dates stay text, because a job and a record are JSON, which has none. A name that is given twice is an error: one of
    its two values would be lost.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            names = [name for name, _ in node.value if isinstance(name, yaml.ScalarNode) and name.value != "<<"]
            lines: dict[str, int] = {}
            for name in names:
                line = name.start_mark.line + 1
                if name.value in lines:
                    raise ValueError(f"{name.value!r} is given twice, on lines {lines[name.value]} and {line}")
                lines[name.value] = line
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    number = re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789."))
    try:
        return yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).replace('in "<unicode string>", ', "at ").split())) from error


def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a config class."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for before, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(before, ast.AnnAssign)
                and isinstance(before.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                docs[before.target.id] = " ".join(after.value.value.split())
    return docs
