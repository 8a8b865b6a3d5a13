"""Reads cluster.toml into a ClusterConfig; errors name the allowed values."""

import re
import shlex
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from bootstrap.config import BootstrapConfig
from bootstrap.container.config import ContainerConfig
from bootstrap.notify import NotifyConfig
from bootstrap.ssh.host_list import HostsConfig
from ec2_sandbox.config import MAX_OTHERS, FolderSettings, SandboxConfig
from foundation import settings
from foundation.errors import ConfigError
from foundation.files import read_bounded
from foundation.setting_types import Settings, Shape
from foundation.settings import check
from foundation.toml import MOST_BYTES, find_line, parse_toml
from provision.config import NAME_PATTERN, ProvisionConfig, all_regions
from provision.lease.config import LeaseConfig
from provision.lease.config import find_conflicts as find_lease_conflicts
from provision.volumes.config import VolumeConfig, find_conflicts
from train.job.config import DataConfig, JobFile, QueueConfig, TrainConfig

FILE_NAME = "cluster.toml"


class SandboxTable(SandboxConfig, Settings, frozen=True, kw_only=True):
    """The behaviour of the sandbox that `cluster sandbox start` starts. Every setting has a default."""


class ClusterConfig(Settings, frozen=True, kw_only=True):
    """One cluster, as cluster.toml describes it."""

    name: Annotated[
        str,
        Shape(NAME_PATTERN.pattern),
        Meta(
            description="lower-case letters, digits and hyphens, a letter first, 32 at most; part of the names of all "
            "that is created",
        ),
    ]
    cloud: Annotated[
        Literal["sandbox", "aws", "hosts"],
        Meta(
            description='"sandbox": a local stand-in for EC2 and S3, free of charge; "aws": your account; "hosts": '
            "existing hosts, which [hosts] names or -H lists"
        ),
    ] = "sandbox"
    provision: ProvisionConfig = ProvisionConfig()
    lease: LeaseConfig = LeaseConfig()
    hosts: HostsConfig = HostsConfig()
    volumes: Annotated[
        tuple[VolumeConfig, ...],
        Meta(description="file systems that every node mounts, one [[volumes]] table for each"),
    ] = ()
    bootstrap: BootstrapConfig = BootstrapConfig()
    container: ContainerConfig = ContainerConfig()
    train: TrainConfig = TrainConfig()
    queue: QueueConfig = QueueConfig()
    data: DataConfig = DataConfig()
    notify: NotifyConfig = NotifyConfig()
    sandbox: SandboxTable = SandboxTable()

    def conflicts(self, _given: AbstractSet[str]) -> Iterator[str]:
        """Yields a message for each contradiction between tables."""
        conflict = self.queue.find_conflict(self.train.max_duration_s)
        if conflict is not None:
            yield conflict
        yield from find_conflicts(self.volumes, in_ec2=self.cloud != "hosts")
        yield from find_lease_conflicts(self.lease, market=self.provision.market, in_ec2=self.cloud != "hosts")
        yield from self.data.find_conflicts({volume.mount: volume.read_only for volume in self.volumes})


def sandbox_settings(config: ClusterConfig) -> FolderSettings:
    """Returns the settings of the folder's sandbox, which has only the first of many regions. Pure."""
    region, *others = all_regions(config.provision)
    return FolderSettings(**asdict(config.sandbox), region=region, others=tuple(others[:MAX_OTHERS]))


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> ClusterConfig:
    """Reads and checks `path`. overrides: command line values by dotted key, such as {"provision.nodes": 4}.

    Raises ConfigError, which names the file, the key, the value, the allowed values and the nearest known key.
    """
    return parse_config(read_table(path), source=str(path), overrides=overrides)


def load_job_file(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the keys of a job file, which override cluster.toml, and the command that it has in place of a script.

    The command is () if the file has none. Raises ConfigError as load_config does.
    """
    table = read_table(path, hint="correct the path after --job")
    job = check(JobFile, table, source=str(path))
    return {f"train.{key}": getattr(job, key) for key in table if key != "command"}, job.command


class Mistake(Struct, frozen=True, kw_only=True):
    """What is wrong in cluster.toml. line: None if the whole file is meant; key: dotted, "" if it is not valid TOML."""

    line: int | None
    key: str
    message: str


def find_mistakes(path: Path) -> tuple[Mistake, ...]:
    """Returns everything that is wrong in cluster.toml, in the order of its lines.

    Raises ConfigError if the file cannot be read.
    """
    text = _read_text(path)
    try:
        found = settings.find_mistakes(ClusterConfig, parse_toml(text))
    except ValueError as error:
        line, message = _explain_toml(str(error))
        return (Mistake(line=line, key="", message=message),)
    mistakes = [Mistake(line=find_line(text, key), key=key, message=words) for key, words in found]
    return tuple(sorted(mistakes, key=lambda one: one.line or 0))


def read_table(path: Path, *, hint: str = "") -> dict[str, Any]:
    """Returns the content of a TOML file, unchecked. Raises ConfigError. hint: see _read_text."""
    text = _read_text(path, hint=hint)
    try:
        return parse_toml(text)
    except ValueError as error:  # also Python's own error for a number with thousands of digits
        line, message = _explain_toml(str(error))
        where = str(path) if line is None else f"{path}, line {line}"
        raise ConfigError(f"{where}: {message}", hint=AGAIN.format(path=path)) from error


def _read_text(path: Path, *, hint: str = "") -> str:
    """Returns the text of a TOML file. Raises ConfigError, also if it is not UTF-8.

    hint: for a file that does not exist; "": cluster init writes it.
    """
    try:
        content = read_bounded(path, most_bytes=MOST_BYTES)
        return content.decode("utf-8-sig")  # editors on Windows write this mark
    except FileNotFoundError:
        init = "cluster init" if path.name == FILE_NAME else f"cluster -c {shlex.quote(str(path))} init"
        raise ConfigError(f"{path}: there is no such file", hint=hint or init) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", hint=AGAIN.format(path=path)) from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8 text", hint=f"save {path} as UTF-8") from None


AGAIN = "correct {path}, then run the command again"
_POSITION = re.compile(r" \(at line (\d+), column \d+\)")
_MEANINGS = {
    "Invalid value": 'text needs quotes, as in name = "demo"; the words true and false do not',
    "Cannot overwrite a value": "a key appears twice",
}
_TWICE = re.compile(r"Cannot declare \('(.*?)',\) twice")


def _explain_toml(words: str) -> tuple[int | None, str]:
    """Returns the line that is not valid TOML, and what is wrong there. Pure. words: the message of tomllib.

    The line itself is not shown: it may have a secret.
    """
    match = _POSITION.search(words)
    what = words if match is None else words.replace(match[0], "")
    what = _TWICE.sub(r"[\1] is there twice: it can be there once, with all its keys", what)
    meaning = f" ({_MEANINGS[what]})" if what in _MEANINGS else ""
    return None if match is None else int(match[1]), f"not valid TOML: {what}{meaning}"


def parse_config(table: Mapping[str, Any], *, source: str, overrides: Mapping[str, Any] | None = None) -> ClusterConfig:
    """Checks a parsed TOML table. source: the name of the file in errors. Pure. Raises ConfigError.

    An override that is a table, such as {"train.env": {"A": "1"}}, is merged name by name into the file's table.
    """
    merged: dict[str, Any] = {key: dict(v) if isinstance(v, dict) else v for key, v in table.items()}
    for dotted, value in (overrides or {}).items():
        section, _, key = dotted.rpartition(".")
        target = merged.setdefault(section, {}) if section else merged
        if isinstance(target, dict):
            below = target.get(key)
            target[key] = {**below, **value} if isinstance(value, dict) and isinstance(below, dict) else value
    return check(ClusterConfig, merged, source=source, given=set(_find_given(overrides or {})))


def _find_given(overrides: Mapping[str, Any]) -> Iterator[str]:
    """Yields the dotted keys that the command line sets; for a table, one key for each of its names."""
    for dotted, value in overrides.items():
        if isinstance(value, dict):
            yield from (f"{dotted}.{name}" for name in value)
        else:
            yield dotted
