"""Reads the settings of a folder's sandbox: [tool.ec2-sandbox] in its pyproject.toml."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import convert

from ec2_sandbox.config import DEFAULT_REGION, FolderSettings, check_fault, check_package, check_quota_code
from ec2_sandbox.errors import UsageError

TABLE = "[tool.ec2-sandbox]"


def _check_region(name: str) -> None:
    if name != DEFAULT_REGION:
        from botocore.session import Session  # noqa: PLC0415 - it takes 0.1 s, and most sandboxes are in the default

        if name not in Session().get_available_regions("ec2"):
            raise ValueError(f"AWS has no region {name}")


convert({}, FolderSettings)  # msgspec crashes if two threads convert to a type for the first time at once


def read_settings(folder: Path, given: Mapping[str, Any]) -> FolderSettings:
    """Returns the settings of a folder's sandbox. given: those of the command line, which come first.

    Raises UsageError, which names the setting and what is allowed.
    """
    path = folder / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text()).get("tool", {}).get("ec2-sandbox", {})
    except FileNotFoundError:
        table = {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    make_settings(table, where=f"{path}: {TABLE}")
    return make_settings({**table, **given})


def make_settings(given: Mapping[str, Any], *, where: str = "wrong settings") -> FolderSettings:
    """Returns the settings of a sandbox. Raises UsageError, which names the setting and what is allowed."""
    try:
        settings = convert(given, FolderSettings)
        checks = (
            (_check_region, (settings.region, *settings.others)), (check_quota_code, settings.quotas),
            (check_fault, settings.faults), (check_package, settings.packages),
        )  # fmt: skip
        for check, values in checks:
            for value in values:
                check(value)
    except ValueError as error:  # includes msgspec's ValidationError
        raise UsageError(f"{where}: {error}") from error
    return settings
