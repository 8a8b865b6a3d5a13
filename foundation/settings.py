"""Checks a TOML table of settings against the class that describes it, and reports all mistakes in one error.

The annotation of a key defines what is allowed: a type, msgspec's Meta for limits and the description, a Shape for
text, and functions that return the normalized value or raise ValueError. msgspec checks single values. Tables are
checked here, because msgspec stops at the first mistake and words its messages for programmers.
"""

import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import fields, replace

from foundation.errors import ConfigError
from foundation.remote_command import hide_passwords
from foundation.setting_types import ALONE, HIDDEN, Settings, Shape

_KINDS: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    str: (str,),
    tuple: (list, tuple),
    dict: (dict,),
}
_LONGEST_SHOWN = 80
_MOST_MISTAKES = 50
_WORD = re.compile(r"\S{1,40}")
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes", tuple: "a list"}


S = TypeVar("S", bound=Settings)


class Setting(Struct, frozen=True, kw_only=True):
    """A key of a table.

    `table`: the settings class, if the value is a table itself, or if `repeated`, a list of tables: [[name]].
    """

    name: str
    annotation: Any
    description: str
    required: bool
    table: type[Settings] | None
    repeated: bool = False

    @property
    def written(self) -> str:
        """A table's name as TOML writes it."""
        return f"[[{self.name}]]" if self.repeated else f"[{self.name}]"


@cache
def describe_settings(kind: type[Settings]) -> Mapping[str, Setting]:
    """The keys of a table by their names, in order. Pure."""
    found: dict[str, Setting] = {}
    for field in fields(kind):
        base, _ = split(field.type)
        entry = split(get_args(base)[0])[0] if get_origin(base) is tuple else None
        repeated = _is_table(entry)
        found[field.name] = Setting(
            name=field.name,
            annotation=field.type,
            description=_find_description(field.type),
            required=field.required,
            table=entry if repeated else base if _is_table(base) else None,
            repeated=repeated,
        )
    return found


def _find_description(annotation: Any) -> str:
    """The description of a key, or of the value that it may have besides None; "" for none."""
    base, notes = split(annotation)
    found = next((note.description for note in notes if isinstance(note, Meta) and note.description), "")
    branches = get_args(base) if get_origin(base) in (Union, UnionType) and not found else ()
    return found or next(filter(None, map(_find_description, branches)), "")


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Settings)


def check(kind: type[S], table: Mapping[str, Any], *, source: str, given: Collection[str] = ()) -> S:
    """Returns `table` as a `kind`. Pure.

    source: where the table was read; given: the dotted keys that come from the command line instead.
    Raises ConfigError, which names every wrong key, its value, what is allowed and the nearest known key.
    """
    reader = _Reader(kind)
    settings = reader.read_table(kind, table, ())
    if settings is None:
        shown = reader.mistakes[:_MOST_MISTAKES]
        lines = [f"{'command line' if key in given else source}: {problem}" for key, problem in shown]
        if len(reader.mistakes) > len(shown):
            lines.append(f"{source}: and more like these")
        named = [key for key, _ in reader.mistakes]
        where = "the command line" if all(key in given for key in named) else source
        raise ConfigError("\n".join(lines), hint=f"correct {where}, then run the command again")
    return settings


def find_mistakes(kind: type[Settings], table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns all mistakes in a table: the dotted key, such as "volumes[0].mount", and a sentence. Pure."""
    reader = _Reader(kind)
    reader.read_table(kind, table, ())
    return reader.mistakes


class _TableKey(Struct, frozen=True, kw_only=True):
    """A place in the table, and what is allowed there. `key`: the setting's; `hidden`: never show the value."""

    key: str
    shown: str
    annotation: Any
    description: str
    hidden: bool = False


class _Reader:
    """Turns tables into settings, and collects mistakes as dotted keys and sentences."""

    def __init__(self, root: type[Settings]) -> None:
        self._root = root
        self.mistakes: list[tuple[str, str]] = []

    def read_table(self, kind: type[S], table: Mapping[str, Any], path: tuple[str, ...]) -> S | None:
        """Returns the settings; None if the table has mistakes."""
        before = len(self.mistakes)
        known = describe_settings(kind)
        values: dict[str, Any] = {}
        for name, setting in known.items():
            key = ".".join((*path, name))
            if name in table:
                values[name] = self._read_setting(setting, table[name], (*path, name))
            elif setting.required:
                self.mistakes.append((key, f"{key}: missing; {setting.description}"))
        for name in table:
            if name not in known and len(self.mistakes) <= _MOST_MISTAKES:
                shown = ".".join((*path, show_name(name)))
                problem = f"{shown}: unknown key{suggest(name, known, self._find_elsewhere(name, path))}"
                self.mistakes.append((".".join((*path, name)), problem))
        if len(self.mistakes) > before:
            return None
        settings = kind(**values)
        self.mistakes += [(".".join(path), _name_section(path) + problem) for problem in settings.conflicts(set(table))]
        return settings if len(self.mistakes) == before else None

    def _find_elsewhere(self, name: str, path: tuple[str, ...]) -> Iterator[str]:
        for key, setting in describe_settings(self._root).items():
            if setting.table is not None and name in describe_settings(setting.table):
                yield f"{setting.written} {name}"
            elif setting.table is None and key == name and path:
                yield f"{name}, above the first [table]"

    def _read_setting(self, setting: Setting, value: Any, path: tuple[str, ...]) -> Any:
        key = ".".join(path)
        if setting.table is None:
            table_key = _TableKey(
                key=key,
                shown=key,
                annotation=setting.annotation,
                description=setting.description,
                hidden=is_hidden(setting.annotation),
            )
            return self._read(value, setting.annotation, table_key)
        if setting.repeated:
            if isinstance(value, Sequence) and all(isinstance(one, Mapping) for one in value):
                places = ((*path[:-1], f"{path[-1]}[{at}]") for at in range(len(value)))
                return tuple(self.read_table(setting.table, *there) for there in zip(value, places, strict=True))
        elif isinstance(value, Mapping):
            return self.read_table(setting.table, value, path)
        allowed = f"tables, each written as [[{key}]]" if setting.repeated else f"a table, written as [{key}]"
        hidden = any(is_hidden(one.annotation) for one in describe_settings(setting.table).values())
        shown = key if hidden else f"{key} = {show(value)}"
        self.mistakes.append((key, f"{shown}: must be {allowed}"))
        return None

    def _read(self, value: Any, annotation: Any, table_key: _TableKey) -> Any:
        """Returns the normalized value. The result for a wrong value is meaningless."""
        before = len(self.mistakes)
        base, notes = split(annotation)
        origin = get_origin(base)
        if origin in (Union, UnionType):
            value = self._read_branch(value, [one for one in get_args(base) if one is not NoneType], table_key)
        elif origin is tuple:
            value = self._read_list(value, get_args(base)[0], table_key, alone=ALONE in notes)
        elif origin is dict:
            value = self._read_names(value, get_args(base), table_key)
        else:
            value = self._convert(value, annotation, table_key)
        for normalize in filter(callable, notes):
            if len(self.mistakes) == before:
                value = self._normalize(value, normalize, table_key)
        return value

    def _convert(self, value: Any, annotation: Any, table_key: _TableKey) -> Any:
        shape = _find_shape(annotation)
        try:
            converted = convert(value, annotation)
        except ValidationError:
            return self._refuse(value, table_key)
        if shape is not None and re.fullmatch(shape.pattern, converted) is None:
            return self._refuse(value, table_key)
        return converted

    def _read_branch(self, value: Any, branches: Sequence[Any], table_key: _TableKey) -> Any:
        if len(branches) == 1:  # the other is None, which TOML cannot express
            return self._read(value, branches[0], replace(table_key, annotation=branches[0]))
        fitting = [branch for branch in branches if _fits(value, branch)]
        # The message for a wrong value lists everything that is allowed.
        return self._read(value, fitting[0], table_key) if fitting else self._refuse(value, table_key)

    def _normalize(self, value: Any, normalize: Any, table_key: _TableKey) -> Any:
        try:
            return normalize(value)
        except ValueError as error:
            self._add_problem(value, str(error), table_key)

    def _read_list(self, value: Any, entry: Any, table_key: _TableKey, *, alone: bool) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            if not alone:
                example = f" such as [{show(value)}]" if isinstance(value, str) and _WORD.fullmatch(value) else ""
                problem = f"must be {name_allowed(table_key.annotation)}{example} ({table_key.description})"
                self._add_problem(value, problem, table_key)
                return ()
            return (self._read(value, entry, replace(table_key, annotation=entry)),)
        places = (replace(table_key, shown=f"{table_key.shown}[{at}]", annotation=entry) for at in range(len(value)))
        return tuple(self._read(one, entry, there) for one, there in zip(value, places, strict=True))

    def _read_names(self, value: Any, types: tuple[Any, Any], table_key: _TableKey) -> dict[str, Any]:
        name_type, value_type = types
        hidden = HIDDEN in split(value_type)[1]
        if not isinstance(value, Mapping):
            self._refuse(value, replace(table_key, hidden=hidden))
            return {}
        read: dict[str, Any] = {}
        for name, one in value.items():
            here = replace(
                table_key, key=f"{table_key.key}.{name}", shown=f"{table_key.shown}.{show_name(name)}", hidden=True
            )
            read_name = self._read(name, name_type, replace(here, annotation=name_type))
            read[read_name] = self._read(one, value_type, replace(here, annotation=value_type, hidden=hidden))
        return read

    def _refuse(self, value: Any, table_key: _TableKey) -> None:
        shape = _find_shape(table_key.annotation)
        if shape is not None and shape.words:
            problem = f"must be {shape.words}"
        elif shape is not None and isinstance(value, str):
            # The description says more to a reader than a regular expression.
            problem = f"not allowed; allowed: {table_key.description}"
        else:
            problem = f"must be {name_allowed(table_key.annotation)} ({table_key.description})"
        self._add_problem(value, problem, table_key)

    def _add_problem(self, value: Any, problem: str, table_key: _TableKey) -> None:
        shown = table_key.shown if table_key.hidden else f"{table_key.shown} = {show(value)}"
        self.mistakes.append((table_key.key, f"{shown}: {problem}"))


def _name_section(path: Sequence[str]) -> str:
    """The beginning of a sentence about the table at `path`: "[train] " or "volumes[0]: "; "" for the file itself."""
    section = ".".join(path)
    if not section:
        return ""
    return f"{section}: " if section.endswith("]") else f"[{section}] "


def _find_shape(annotation: Any) -> Shape | None:
    return next((note for note in split(annotation)[1] if isinstance(note, Shape)), None)


def _fits(value: object, annotation: Any) -> bool:
    """Whether a branch of a union is for values of this kind."""
    base, _ = split(annotation)
    if get_origin(base) is Literal:
        return type(value) in {type(known) for known in get_args(base)}
    return type(value) in _KINDS.get(get_origin(base) or base, ())


# -- settings and their values in error messages -----------------------------------------------------------------------


def split(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type and its annotations."""
    if get_origin(annotation) is Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def is_hidden(annotation: Any) -> bool:
    """Whether a setting's values are never shown; for optional ones, the value's own annotation says so."""
    base, notes = split(annotation)
    branches = get_args(base) if get_origin(base) in (Union, UnionType) else ()
    return HIDDEN in notes or any(HIDDEN in split(branch)[1] for branch in branches)


def name_allowed(annotation: Any) -> str:
    """The allowed values, as words to follow "must be"."""
    base, notes = split(annotation)
    origin = get_origin(base)
    if origin is Literal:
        return _join([show(value) for value in get_args(base)])
    if origin in (Union, UnionType):
        branches = [branch for branch in get_args(base) if branch is not NoneType]
        literal = [show(v) for branch in branches if get_origin(branch) is Literal for v in get_args(branch)]
        return _join([*literal, *(name_allowed(one) for one in branches if get_origin(one) is not Literal)])
    return _NAMES.get(origin or base, "a table") + _name_limits(notes)


def _name_limits(notes: Sequence[Any]) -> str:
    metas = [note for note in notes if isinstance(note, Meta)]
    least, most, above = (
        next((limit for meta in metas if (limit := getattr(meta, name)) is not None), None)
        for name in ("ge", "le", "gt")
    )
    if above is not None:
        return f" above {above}" + (f", at most {most}" if most is not None else "")
    if any(meta.min_length for meta in metas):
        return ", not empty"
    if least is None:
        return ""
    return f", {least} or more" if most is None else f" from {least} to {most}"


def _join(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def suggest(name: str, known: Collection[str], elsewhere: Iterable[str]) -> str:
    """The end of the message for an unknown name: the nearest known name, or the table that has it."""
    nearest = [f'"{found}"' for found in difflib.get_close_matches(name, known, n=1)]
    likely = next(iter((*nearest, *elsewhere)), None)
    return f" (known here: {', '.join(known)})" if likely is None else f"; did you mean {likely}?"


def show_name(name: str) -> str:
    """A key as TOML writes it."""
    bare = name.replace("_", "").replace("-", "")
    return name if bare.isascii() and bare.isalnum() else show(name)


def show(value: object) -> str:
    """A value as TOML writes it, without passwords in URLs, cut to 80 characters."""
    if isinstance(value, str):
        text = json.dumps(hide_passwords(value), ensure_ascii=False)
    elif isinstance(value, bool):
        text = json.dumps(value)
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(map(show, value))}]"
    elif isinstance(value, Mapping):
        text = f"{{ {', '.join(f'{show_name(name)} = {show(one)}' for name, one in value.items())} }}"
    else:
        text = str(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
