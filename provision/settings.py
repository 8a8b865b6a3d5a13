"""A table of settings, as TOML has it, held against the class that describes it: all its mistakes in one error.

What a key may be stands in its annotation: its type, msgspec's Meta for limits and the description, a Shape for text,
and functions of our own, which return the value in its normal form or raise ValueError. msgspec checks each single
value; the tables are gone through here, since it stops at the first mistake, and has words for programmers.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import fields, replace

from provision.errors import ConfigError
from provision.setting_words import name_allowed, show, show_name, split, suggest

ALONE = "a value alone is a list of one"
"""In the annotation of a list."""
HIDDEN = "not to be shown: it can be a secret"
"""In the annotation of a value."""

_KINDS: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    str: (str,),
    tuple: (list, tuple),
    dict: (dict,),
}


class Settings(Struct, frozen=True, kw_only=True):
    """A table of settings, every one of them allowed. What a user wrote becomes one by `check`, and only there."""

    def conflicts(self, said: AbstractSet[str]) -> Iterator[str]:  # noqa: ARG002 - for the classes below this one
        """What is wrong between settings that are each allowed; `said`: the keys that the table has."""
        yield from ()


S = TypeVar("S", bound=Settings)


class Setting(Struct, frozen=True, kw_only=True):
    """A key of a table. `table`: what is allowed in it, where it is a table of settings itself."""

    name: str
    annotation: Any
    description: str
    required: bool
    table: type[Settings] | None


class Shape(Struct, frozen=True):
    """In the annotation of text: `pattern` matches it in full. `words`: what that is, if the description is not enough.

    Meta has a pattern, too, and compiles it in each run of the program, be there such a key or not.
    """

    pattern: str
    words: str = ""


def finite(value: float) -> float:
    """The number as it is. Raises ValueError for one that is infinite, which TOML can say and Meta cannot exclude."""
    if not math.isfinite(value):
        raise ValueError("must be finite")
    return value


@cache
def describe_settings(kind: type[Settings]) -> Mapping[str, Setting]:
    """The keys of a table by their names, in order. Pure."""
    found: dict[str, Setting] = {}
    for field in fields(kind):
        base, notes = split(field.type)
        found[field.name] = Setting(
            name=field.name,
            annotation=field.type,
            description=next((note.description for note in notes if isinstance(note, Meta) and note.description), ""),
            required=field.required,
            table=base if isinstance(base, type) and issubclass(base, Settings) else None,
        )
    return found


def check(kind: type[S], table: Mapping[str, Any], *, source: str, given: Collection[str] = ()) -> S:
    """`table` as a `kind`. Pure.

    `source` is where it was read; `given`: the dotted keys that were not read there but come from the command line.
    Raises ConfigError, which names every key that is wrong, its value, what is allowed and the nearest known key.
    """
    reader = _Reader(kind)
    made = reader.read_table(kind, table, ())
    if made is None:
        lines = [f"{'command line' if key in given else source}: {said}" for key, said in reader.mistakes]
        raise ConfigError("\n".join(lines))
    return made


class _Place(Struct, frozen=True, kw_only=True):
    """Where a value stands, and what is allowed there. `key`: the setting's; `hidden`: the value is not to be shown."""

    key: str
    shown: str
    annotation: Any
    description: str
    hidden: bool = False


class _Reader:
    """Makes what tables say into settings, and gathers what is wrong with them: dotted keys and sentences."""

    def __init__(self, root: type[Settings]) -> None:
        self._root = root
        self.mistakes: list[tuple[str, str]] = []

    def read_table(self, kind: type[S], table: Mapping[str, Any], path: tuple[str, ...]) -> S | None:
        """None: it has mistakes."""
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
            if name not in known:
                shown = ".".join((*path, show_name(name)))
                said = f"{shown}: unknown key{suggest(name, known, self._find_elsewhere(name, path))}"
                self.mistakes.append((".".join((*path, name)), said))
        if len(self.mistakes) > before:
            return None
        made = kind(**values)
        section = ".".join(path)
        self.mistakes += [(section, f"[{section}] {said}" if section else said) for said in made.conflicts(set(table))]
        return made if len(self.mistakes) == before else None

    def _find_elsewhere(self, name: str, path: tuple[str, ...]) -> Iterator[str]:
        for key, setting in describe_settings(self._root).items():
            if setting.table is not None and name in describe_settings(setting.table):
                yield f"[{key}] {name}"
            elif setting.table is None and key == name and path:
                yield f"{name}, above the first [table]"

    def _read_setting(self, setting: Setting, value: Any, path: tuple[str, ...]) -> Any:
        key = ".".join(path)
        if setting.table is None:
            place = _Place(key=key, shown=key, annotation=setting.annotation, description=setting.description)
            return self._read(value, setting.annotation, place)
        if isinstance(value, Mapping):
            return self.read_table(setting.table, value, path)
        self.mistakes.append((key, f"{key} = {show(value)}: must be a table, written as [{key}]"))
        return None

    def _read(self, value: Any, annotation: Any, place: _Place) -> Any:
        """The value in its normal form; what comes back for one that is wrong means nothing."""
        before = len(self.mistakes)
        base, notes = split(annotation)
        origin = get_origin(base)
        if origin in (Union, UnionType):
            value = self._read_branch(value, [one for one in get_args(base) if one is not NoneType], place)
        elif origin is tuple:
            value = self._read_list(value, get_args(base)[0], place, alone=ALONE in notes)
        elif origin is dict:
            value = self._read_names(value, get_args(base), place)
        else:
            value = self._convert(value, annotation, place)
        for normalize in filter(callable, notes):
            if len(self.mistakes) == before:
                value = self._normalize(value, normalize, place)
        return value

    def _convert(self, value: Any, annotation: Any, place: _Place) -> Any:
        shape = _find_shape(annotation)
        try:
            converted = convert(value, annotation)
        except ValidationError:
            return self._refuse(value, place)
        if shape is not None and re.fullmatch(shape.pattern, converted) is None:
            return self._refuse(value, place)
        return converted

    def _read_branch(self, value: Any, branches: Sequence[Any], place: _Place) -> Any:
        if len(branches) == 1:  # or None, which no file can say
            return self._read(value, branches[0], replace(place, annotation=branches[0]))
        fitting = [branch for branch in branches if _fits(value, branch)]
        # What is said of a value that is wrong stays about all that is allowed.
        return self._read(value, fitting[0], place) if fitting else self._refuse(value, place)

    def _normalize(self, value: Any, normalize: Any, place: _Place) -> Any:
        try:
            return normalize(value)
        except ValueError as error:
            self._say(value, str(error), place)

    def _read_list(self, value: Any, entry: Any, place: _Place, *, alone: bool) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            if not alone:
                self._refuse(value, place)
                return ()
            return (self._read(value, entry, replace(place, annotation=entry)),)
        places = (replace(place, shown=f"{place.shown}[{at}]", annotation=entry) for at in range(len(value)))
        return tuple(self._read(one, entry, there) for one, there in zip(value, places, strict=True))

    def _read_names(self, value: Any, types: tuple[Any, Any], place: _Place) -> dict[str, Any]:
        name_type, value_type = types
        hidden = HIDDEN in split(value_type)[1]
        if not isinstance(value, Mapping):
            self._refuse(value, replace(place, hidden=hidden))
            return {}
        read: dict[str, Any] = {}
        for name, one in value.items():
            here = replace(place, key=f"{place.key}.{name}", shown=f"{place.shown}.{show_name(name)}", hidden=True)
            read_name = self._read(name, name_type, replace(here, annotation=name_type))
            read[read_name] = self._read(one, value_type, replace(here, annotation=value_type, hidden=hidden))
        return read

    def _refuse(self, value: Any, place: _Place) -> None:
        shape = _find_shape(place.annotation)
        if shape is not None and shape.words:
            said = f"must be {shape.words}"
        elif shape is not None and isinstance(value, str):
            # A regular expression tells a reader less than the description does.
            said = f"not allowed; allowed: {place.description}"
        else:
            said = f"must be {name_allowed(place.annotation)} ({place.description})"
        self._say(value, said, place)

    def _say(self, value: Any, said: str, place: _Place) -> None:
        shown = place.shown if place.hidden else f"{place.shown} = {show(value)}"
        self.mistakes.append((place.key, f"{shown}: {said}"))


def _find_shape(annotation: Any) -> Shape | None:
    return next((note for note in split(annotation)[1] if isinstance(note, Shape)), None)


def _fits(value: object, annotation: Any) -> bool:
    """Whether a branch of a union is for values of this kind."""
    base, _ = split(annotation)
    if get_origin(base) is Literal:
        return type(value) in {type(known) for known in get_args(base)}
    return type(value) in _KINDS.get(get_origin(base) or base, ())
