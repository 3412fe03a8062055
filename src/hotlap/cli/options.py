"""A verb's options, made from its settings class: one field, one flag, its docstring the help."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import os
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NoReturn

from hotlap.base.errors import UsageError
from hotlap.base.settings import (
    ENV_PREFIX,
    Layer,
    MissingSetting,
    Resolved,
    env_layer,
    field_docs,
    file_layer,
    resolve,
    set_layer,
)
from hotlap.cli.verbs import VERBS, Verb
from hotlap.engine.place import LAUNCHED

SHARED = ("--config", "--set", "--json", "--quiet", "--dry-run", "--preset")
RENAMED = {"--for": "mode", "--format": "formats"}
"""Flags that have another name than their setting, in whichever verb: with ``--for`` the ``mode`` is meant.

To find them in the verbs' settings would import torch to tell of a slip of the finger; a test compares.
"""


class Parser(argparse.ArgumentParser):
    """argparse, with its complaints raised as ours."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", remedy=f"'{self.prog} --help' shows what it takes")


@dataclasses.dataclass(frozen=True)
class Common:
    """What every verb takes beside its own settings."""

    json: bool
    quiet: bool
    dry_run: bool


@dataclasses.dataclass(frozen=True)
class Request:
    """A parsed command line."""

    resolved: Resolved[Any]
    common: Common
    arguments: tuple[str, ...] = ()
    """The words after the verb, for a process that is to do the same."""


def load_config_class(path: str) -> type:
    module, _, name = path.partition(":")
    found: type = getattr(importlib.import_module(module), name)
    return found


def build_parser(name: str, verb: Verb, cls: type) -> Parser:
    """The parser of one verb."""
    parser = Parser(
        prog=f"hotlap {name}",
        description=(cls.__doc__ or verb.summary).strip(),
        epilog=f"example: {verb.example}",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    docs, kinds = field_docs(cls), typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        _add_field(parser, verb, field, kinds[field.name], docs.get(field.name, ""))
    if _takes_preset(cls):
        parser.add_argument("--preset", dest="preset_", metavar="NAME", help="the same as --set workload.preset=NAME")
    common = parser.add_argument_group("every verb")
    common.add_argument("--config", metavar="FILE", help="settings from a YAML file; the command line wins over it")
    common.add_argument("--set", dest="set_", action="append", metavar="A.B=C", help="any setting by its name")
    common.add_argument("--json", dest="json_", action="store_true", help="the result as JSON on stdout")
    common.add_argument("--quiet", dest="quiet_", action="store_true", help="no progress")
    common.add_argument("--dry-run", dest="dry_run_", action="store_true", help="show what would be done, and stop")
    return parser


def _takes_preset(cls: type) -> bool:
    """Whether a preset is the target's, not the verb's own."""
    names = {field.name for field in dataclasses.fields(cls)}
    return "workload" in names and "preset" not in names


def _add_field(parser: Parser, verb: Verb, field: dataclasses.Field[Any], kind: Any, doc: str) -> None:
    default = _default_text(field)
    doc = (doc + (f" (default {default})" if default else "")).replace("%", "%%")
    if field.name == verb.positional:
        parser.add_argument(field.name, nargs="*" if verb.many else "?", help=doc)
        return
    flag = _flag(field)
    if kind is bool:
        parser.add_argument(flag, dest=field.name, action=argparse.BooleanOptionalAction, help=doc)
    elif typing.get_origin(kind) is Literal:
        choices = "|".join(str(c) for c in typing.get_args(kind) if c != "")
        parser.add_argument(flag, dest=field.name, metavar=choices, help=doc)
    elif _is_dict(kind):
        return  # given with --set name.key=value
    elif typing.get_origin(kind) is tuple:
        parser.add_argument(flag, dest=field.name, action="append", metavar="A,B", help=doc)
    else:
        # A field's metadata may say what its flag means when no value follows it.
        bare = {"nargs": "?", "const": field.metadata["bare"]} if "bare" in field.metadata else {}
        parser.add_argument(flag, dest=field.name, metavar=field.name.rpartition("_")[2].upper(), help=doc, **bare)


def _flag(field: dataclasses.Field[Any]) -> str:
    return "--" + str(field.metadata.get("flag", field.name.replace("_", "-")))


def _is_dict(kind: Any) -> bool:
    return kind is dict or typing.get_origin(kind) is dict


def _default_text(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING or field.default in (None, "", (), False):
        return ""
    if isinstance(field.default, tuple):
        return ",".join(str(value) for value in field.default)
    return "yes" if field.default is True else str(field.default)


def parse(name: str, verb: Verb, arguments: list[str]) -> Request:
    """The request that ``arguments`` spell."""
    cls = load_config_class(verb.config)
    parsed, unknown = build_parser(name, verb, cls).parse_known_args(arguments)
    if unknown:
        raise _not_taken(name, verb, cls, unknown)
    given = vars(parsed)
    common = Common(given.pop("json_", False), given.pop("quiet_", False), given.pop("dry_run_", False))
    file, sets = given.pop("config", None), given.pop("set_", [])
    sets += [f"workload.preset={given.pop('preset_')}"] if "preset_" in given else []
    values = {key: _joined(value) for key, value in given.items() if value not in (None, [])}
    if verb.many and verb.positional in values:
        values[verb.positional] = given[verb.positional]
    layers = [Layer("the command line", values), set_layer(sets), env_layer(cls)]
    layers += [file_layer(Path(file))] if file else []
    try:
        resolved: Resolved[Any] = resolve(cls, layers)
    except MissingSetting as error:
        if not verb.positional or verb.positional in values:
            raise
        raise UsageError(
            f"no {verb.positional} given", expected=f"it after the verb, as in {verb.example!r}"
        ) from error
    return Request(resolved, common, tuple(arguments))


def _not_taken(name: str, verb: Verb, cls: type, words: list[str]) -> UsageError:
    """What to tell of words that a verb does not take: the option that may have been meant."""
    help_ = f"'hotlap {name} --help' shows what it takes"
    option = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
    if not option:
        return UsageError(f"hotlap {name} does not take {' '.join(words)!r}", remedy=help_)
    setting = RENAMED.get(option, option.lstrip("-").replace("-", "_"))
    if setting == verb.positional:
        help_ = f"Leave its name out, as in {verb.example!r}"
        return UsageError(f"hotlap {name} has no option {option!r}", remedy=help_)
    kinds = typing.get_type_hints(cls)
    fields = [f for f in dataclasses.fields(cls) if f.name != verb.positional and not _is_dict(kinds[f.name])]
    meant = [_flag(field) for field in fields if field.name == setting]
    meant = meant or get_close_matches(option, [*map(_flag, fields), *SHARED], n=1, cutoff=0.7)
    hint = f"Did you mean {meant[0]!r}? " if meant else ""
    return UsageError(f"hotlap {name} has no option {option!r}", remedy=hint + help_)


def mistyped_variables(cls: type, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Sentences on variables without effect: nearly a setting of this class, and none of any verb's.

    Of several processes that see the same environment, only the first one has something to say.
    """
    if LAUNCHED in environ or environ.get("RANK", "0") != "0":
        return []
    own, found = {field.name for field in dataclasses.fields(cls)}, []
    for variable in environ:
        name = variable.removeprefix(ENV_PREFIX).lower().partition("__")[0]
        near = get_close_matches(name, own - {name}, n=1, cutoff=0.8) if variable.startswith(ENV_PREFIX) else []
        if near and name not in own and name not in _all_settings():
            found.append(f"{variable} in the environment is no setting; {ENV_PREFIX}{near[0].upper()} is one")
    return found


@functools.cache
def _all_settings() -> frozenset[str]:
    """Of all verbs whose modules can be imported here; some need torch."""
    found: set[str] = set()
    for verb in VERBS.values():
        with contextlib.suppress(ModuleNotFoundError):
            found |= (
                {field.name for field in dataclasses.fields(load_config_class(verb.config))} if verb.config else set()
            )
    return frozenset(found)


def _joined(value: Any) -> Any:
    """``--arms a --arms b,c`` as one list."""
    return ",".join(value) if isinstance(value, list) else value
