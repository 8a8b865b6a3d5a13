"""pip on the user's machine, asked for wheels of other machines: which they are, and where; or to fetch them."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.explain import render_last_lines
from bootstrap.wheels import WheelTarget, platform_tags
from provision.errors import ClusterError


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundWheel:
    """A wheel that pip has chosen. `sha256` is empty where the index does not tell it."""

    url: str
    sha256: str


def download_wheels(target: WheelTarget, requirements: Sequence[str], directory: Path) -> None:
    """Fetch the wheels of some requirements, and of what they need. Raises ClusterError with pip's own words."""
    _run_pip(["download", "--dest", str(directory)], target, requirements)


def find_wheels(target: WheelTarget, requirements: Sequence[str], *, alone: bool = False) -> tuple[FoundWheel, ...]:
    """What `download_wheels` would fetch; of indexes that tell a wheel's metadata (PEP 658) nothing else is read.

    alone: without what they need. Raises ClusterError with pip's own words.
    """
    words = ["install", "--dry-run", "--ignore-installed", "--report", "-", "--target", "unused"]
    said = _run_pip([*words, *(["--no-deps"] if alone else [])], target, requirements)
    return parse_report(json.loads(said))


def parse_report(report: dict[str, Any]) -> tuple[FoundWheel, ...]:
    """The wheels of pip's installation report (https://pip.pypa.io/en/stable/reference/installation-report/). Pure."""
    infos = [item["download_info"] for item in report["install"]]
    return tuple(
        FoundWheel(url=info["url"], sha256=info.get("archive_info", {}).get("hashes", {}).get("sha256", ""))
        for info in infos
    )


def _run_pip(words: Sequence[str], target: WheelTarget, requirements: Sequence[str]) -> str:
    python = ".".join(map(str, target.python_version))
    command = [sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    for tag in platform_tags(target):
        command += ["--platform", tag]
    result = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        said = render_last_lines([line for line in result.stderr.splitlines() if line.strip()])
        raise ClusterError(
            f"pip could not fetch the nodes' wheels (Python {python}, {target.machine}): "
            f"{' '.join(requirements)}{said}",
            hint="check the versions in [bootstrap], and that this machine reaches a package index",
        )
    return result.stdout
