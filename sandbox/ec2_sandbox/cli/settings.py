"""Reads the settings of a folder's sandbox: [tool.ec2-sandbox] in its pyproject.toml."""

import difflib
import threading
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from msgspec import Meta, ValidationError, convert
from msgspec.structs import fields

from ec2_sandbox.config import SandboxConfig
from ec2_sandbox.errors import UsageError
from ec2_sandbox.paths import MAX_OTHERS

TABLE = "[tool.ec2-sandbox]"
DEFAULT_REGION = "us-east-1"
# msgspec crashes if two threads convert to a type for the first time at once.
_LOCK = threading.Lock()


def _check_region(name: str) -> str:
    if name != DEFAULT_REGION:
        from botocore.session import Session  # noqa: PLC0415 - it takes 0.1 s, and most sandboxes are in the default

        if name not in Session().get_available_regions("ec2"):
            raise ValueError("AWS has no such region")
    return name


class FolderSettings(SandboxConfig, frozen=True, kw_only=True):
    """The settings of a folder's sandbox."""

    region: Annotated[str, _check_region, Meta(description="its region")] = DEFAULT_REGION
    others: Annotated[
        tuple[Annotated[str, _check_region], ...],
        Meta(max_length=MAX_OTHERS, description="up to two more regions that can have instances"),
    ] = ()

    def without_regions(self) -> SandboxConfig:
        """Returns the settings of the local EC2 alone."""
        return SandboxConfig(**{field.name: getattr(self, field.name) for field in fields(SandboxConfig)})


def read_settings(folder: Path, given: Mapping[str, Any]) -> FolderSettings:
    """Returns the settings of a folder's sandbox. given: those of the command line, which come first.

    Raises UsageError, which names every wrong setting and what is allowed.
    """
    path = folder / "pyproject.toml"
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        document = {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    table = document.get("tool", {}).get("ec2-sandbox", {})
    mistakes = [f"{path}: {TABLE} {each}" for each in find_mistakes(table)]
    mistakes += [f"--{each}" for each in find_mistakes(given)]
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return convert({**table, **given}, FolderSettings)


def make_settings(given: Mapping[str, Any]) -> FolderSettings:
    """Returns the settings of a program's sandbox. Raises UsageError, as `read_settings` does."""
    with _LOCK:
        if mistakes := find_mistakes(given):
            raise UsageError("\n".join(mistakes))
        return convert(given, FolderSettings)


def find_mistakes(table: Any) -> list[str]:
    """Returns a sentence for each wrong setting. Pure."""
    if not isinstance(table, Mapping):
        return ["must be a table"]
    known = {field.name: field.type for field in fields(FolderSettings)}
    found = []
    for name, value in table.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            found.append(f"{name}: unknown setting; " + (f'did you mean "{near[0]}"?' if near else ", ".join(known)))
            continue
        try:
            convert(value, known[name])
            _check(value, known[name])
        except ValidationError:
            found.append(f"{name} = {value!r}: not allowed; it is: {_describe(known[name])}")
        except ValueError as error:
            found.append(f"{name} = {value!r}: {error}")
    return found


def _check(value: Any, annotation: Any) -> None:
    """Calls the functions in an annotation. Raises ValueError."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        _check(value, arguments[0])
        for check in filter(callable, arguments[1:]):
            check(value)
    elif get_origin(annotation) in {tuple, dict}:
        for each in value:
            _check(each, arguments[0])


def _describe(annotation: Any) -> str:
    return next(note.description for note in get_args(annotation) if isinstance(note, Meta) and note.description)
