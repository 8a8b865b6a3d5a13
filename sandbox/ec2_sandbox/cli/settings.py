"""Reads the settings of a folder's sandbox: [tool.ec2-sandbox] in its pyproject.toml."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, ValidationError, convert
from msgspec.structs import fields

from ec2_sandbox.config import SandboxConfig, check_fault, check_package, check_quota_code
from ec2_sandbox.errors import UsageError
from ec2_sandbox.paths import MAX_OTHERS

TABLE = "[tool.ec2-sandbox]"
DEFAULT_REGION = "us-east-1"


def _check_region(name: str) -> None:
    if name != DEFAULT_REGION:
        from botocore.session import Session  # noqa: PLC0415 - it takes 0.1 s, and most sandboxes are in the default

        if name not in Session().get_available_regions("ec2"):
            raise ValueError(f"AWS has no region {name}")


class FolderSettings(SandboxConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a folder's sandbox."""

    region: Annotated[str, Meta(description="its region")] = DEFAULT_REGION
    others: Annotated[
        tuple[str, ...], Meta(max_length=MAX_OTHERS, description="up to two more regions that can have instances")
    ] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for values that AWS, or the sandbox, does not have."""
        checks = (
            (_check_region, (self.region, *self.others)), (check_quota_code, self.quotas),
            (check_fault, self.faults), (check_package, self.packages),
        )  # fmt: skip
        for check, values in checks:
            for value in values:
                check(value)

    def without_regions(self) -> SandboxConfig:
        """Returns the settings of the local EC2 alone."""
        return SandboxConfig(**{field.name: getattr(self, field.name) for field in fields(SandboxConfig)})


convert({}, FolderSettings)  # msgspec crashes if two threads convert to a type for the first time at once


def read_settings(folder: Path, given: Mapping[str, Any]) -> FolderSettings:
    """Returns the settings of a folder's sandbox. given: those of the command line, which come first.

    Raises UsageError, which names the setting and what is allowed.
    """
    path = folder / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text()).get("tool", {}).get("ec2-sandbox", {})
        convert(table, FolderSettings)
    except FileNotFoundError:
        table = {}
    except ValidationError as error:
        raise UsageError(f"{path}: {TABLE}: {error}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    return make_settings({**table, **given})


def make_settings(given: Mapping[str, Any]) -> FolderSettings:
    """Returns the settings of a sandbox. Raises UsageError, which names the setting and what is allowed."""
    try:
        return convert(given, FolderSettings)
    except ValidationError as error:
        raise UsageError(f"wrong settings: {error}") from error
