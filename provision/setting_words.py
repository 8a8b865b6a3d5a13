"""How settings and their values are named to the person who wrote them. Pure."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Meta

_LONGEST_SHOWN = 80
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes", tuple: "a list"}


def split(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type, and what is noted of it."""
    if get_origin(annotation) is Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def name_allowed(annotation: Any) -> str:
    """What follows "must be"."""
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
        return f" above {above}"
    if least is None:
        return ""
    return f", {least} or more" if most is None else f" from {least} to {most}"


def _join(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def suggest(name: str, known: Collection[str], elsewhere: Iterable[str]) -> str:
    """What is added to the refusal of a name: the nearest of those that are known, else where there is such a name."""
    import difflib  # noqa: PLC0415 - only a mistake needs it

    nearest = [f'"{found}"' for found in difflib.get_close_matches(name, known, n=1)]
    likely = next(iter((*nearest, *elsewhere)), None)
    suggestion = f"; did you mean {likely}?" if likely is not None else ""
    return f"{suggestion} (known here: {', '.join(known)})"


def show_name(name: str) -> str:
    """A name as a TOML file has it in front of its value."""
    bare = name.replace("_", "").replace("-", "")
    return name if bare.isascii() and bare.isalnum() else show(name)


def show(value: object) -> str:
    """A value as a TOML file has it, or its beginning."""
    if isinstance(value, str | bool):
        text = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(map(show, value))}]"
    elif isinstance(value, Mapping):
        text = f"{{ {', '.join(f'{show_name(name)} = {show(one)}' for name, one in value.items())} }}"
    else:
        text = str(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
