"""cluster.toml -> ClusterConfig: every mistake is refused before anything happens, with what is allowed."""

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bootstrap.config import BootstrapConfig
from provision.config import NAME_PATTERN, ProvisionConfig
from provision.errors import ConfigError
from sandbox.config import SandboxConfig
from train.config import DataConfig, JobFile, TrainConfig

FILE_NAME = "cluster.toml"


class ClusterConfig(BaseModel):
    """One cluster, as cluster.toml describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(
        pattern=rf"^(?:{NAME_PATTERN.pattern})$",
        description="names all that is created; lower-case letters, digits and hyphens, a letter first, 32 at most",
    )
    cloud: Literal["sandbox", "aws"] = Field(
        default="sandbox",
        description='"sandbox": a local stand-in for EC2 and S3, free of charge; "aws": your account',
    )
    provision: ProvisionConfig = ProvisionConfig()
    bootstrap: BootstrapConfig = BootstrapConfig()
    train: TrainConfig = TrainConfig()
    data: DataConfig = DataConfig()
    sandbox: SandboxConfig = SandboxConfig()


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> ClusterConfig:
    """Read and check `path`; `overrides` are command line values by dotted key, such as {"provision.nodes": 4}.

    Raises ConfigError, naming the file, the key, the value, what is allowed and the nearest known key.
    """
    return parse_config(_read_toml(path), source=str(path), overrides=overrides)


def load_job_file(path: Path) -> JobFile:
    """Read and check a job file. Raises ConfigError as load_config does."""
    table = _read_toml(path)
    try:
        return JobFile.model_validate(table)
    except ValidationError as error:
        lines = render_problems(error.errors(include_url=False), model=JobFile)
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines)) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = "cluster init" if path.name == FILE_NAME else None
        raise ConfigError(f"{path}: there is no such file", hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def parse_config(table: Mapping[str, Any], *, source: str, overrides: Mapping[str, Any] | None = None) -> ClusterConfig:
    """Check a parsed TOML table; `source` is named in errors. Pure. Raises ConfigError.

    An override that is a table, such as {"train.env": {"A": "1"}}, is laid over the file's, name by name.
    """
    merged: dict[str, Any] = {key: dict(v) if isinstance(v, dict) else v for key, v in table.items()}
    for dotted, value in (overrides or {}).items():
        section, _, key = dotted.rpartition(".")
        target = merged.setdefault(section, {}) if section else merged
        if isinstance(target, dict):
            below = target.get(key)
            target[key] = {**below, **value} if isinstance(value, dict) and isinstance(below, dict) else value
    try:
        return ClusterConfig.model_validate(merged)
    except ValidationError as error:
        lines = render_problems(error.errors(include_url=False))
        # A table of the command line's has been laid over the file's: either can be wrong.
        given = tuple(f"{key}{end}" for key, v in (overrides or {}).items() for end in " [" if not isinstance(v, dict))
        said = [f"{'command line' if line.startswith(given) else source}: {line}" for line in lines]
        raise ConfigError("\n".join(said)) from None


def render_problems(problems: Sequence[Mapping[str, Any]], *, model: type[BaseModel] = ClusterConfig) -> list[str]:
    """Pydantic's errors as sentences for the person who wrote the file, one for each key; of `model`'s file. Pure."""
    by_key: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for problem in problems:
        path, _ = _find_field([str(part) for part in problem["loc"]], model)
        by_key.setdefault(tuple(path), []).append(problem)
    # Every branch of a union reports its own error; together they only say that the value is not allowed.
    return [
        _render_problem(group[0] if len(group) == 1 else {**group[0], "msg": "not allowed", "type": "union"}, model)
        for group in by_key.values()
    ]


def _render_problem(problem: Mapping[str, Any], root: type[BaseModel]) -> str:
    path, field = _find_field([str(part) for part in problem["loc"]], root)
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        return f"{key}: unknown key{_nearest(path, root)}"
    if problem["type"] == "missing":
        return f"{key}: missing; {_describe(field)}"
    value = problem["input"]
    # A regular expression tells a reader less than the description does.
    pattern = problem["type"] == "string_pattern_mismatch"
    reason = "not allowed" if pattern else problem["msg"].removeprefix("Value error, ").replace("valid tuple", "list")
    if problem["type"] in {"model_type", "model_attributes_type"}:
        return f"{key} = {_show(value)}: must be a table, written as [{key}]"
    if problem["type"] == "value_error":
        # What is about several keys of a section names them itself.
        section = f"[{key}] " if key else ""
        return f"{section}{reason}" if isinstance(value, Mapping) else f"{key} = {_show(value)}: {reason}"
    return f"{key} = {_show(value)}: {reason[:1].lower()}{reason[1:]}; allowed: {_describe(field)}"


def _find_field(location: list[str], root: type[BaseModel]) -> tuple[list[str], Any]:
    """The dotted key that a pydantic location stands for (union branches left out), and its field if known."""
    model: type[BaseModel] | None = root
    path: list[str] = []
    field: Any = None
    for part in location:
        if model is None:
            if field is not None and part.isdigit():
                path[-1] += f"[{part}]"
            break
        path.append(part)
        field = model.model_fields.get(part)
        annotation = field.annotation if field is not None else None
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
        if field is None:
            break
    return path, field


def _nearest(path: list[str], root: type[BaseModel]) -> str:
    model = root
    for part in path[:-1]:
        annotation = model.model_fields[part].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ""
        model = annotation
    known = list(model.model_fields)
    nearest = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.6)
    suggestion = f'; did you mean "{nearest[0]}"?' if nearest else ""
    elsewhere = [
        f"[{section}] {path[-1]}"
        for section, field in root.model_fields.items()
        if isinstance(field.annotation, type)
        and issubclass(field.annotation, BaseModel)
        and path[-1] in field.annotation.model_fields
    ]
    if elsewhere and not nearest:
        suggestion = f"; did you mean {elsewhere[0]}?"
    return f"{suggestion} (known here: {', '.join(known)})"


def _describe(field: Any) -> str:
    return str(field.description) if field is not None and field.description else "see docs/configuration.md"


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    if isinstance(value, bool):
        text = text.lower()
    return text if len(text) <= 80 else text[:77] + "..."
