"""Programs as installed from PyPI or Debian, in the environment that docs/sandbox.md describes."""

import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from project import CLUSTER

# pip's messages when it cannot reach the index.
NO_INDEX = ("No matching distribution found", "Could not find a version", "ConnectTimeoutError", "NewConnectionError")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A program. words: its first arguments. env: its whole environment. directory: where it runs."""

    program: str
    env: dict[str, str]
    directory: Path
    words: tuple[str, ...] = ()

    def run(self, *words: str, stdin: str = "", code: int = 0, timeout_s: float = 120) -> str:
        """Runs it with further arguments and checks its exit code; returns stdout and stderr."""
        done = subprocess.run(
            (self.program, *self.words, *words),
            cwd=self.directory,
            env=self.env,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == code, f"{self.program} {words}: {done.returncode}\n{done.stdout}"
        return done.stdout


def install(directory: Path, *requirements: str, python: str = sys.executable) -> Path:
    """Makes a virtual environment with the requirements; returns its folder of programs.

    Skips the test if pip has no index with these packages.
    """
    subprocess.run((python, "-m", "venv", str(directory)), check=True, timeout=600)
    words = (str(directory / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    pip = subprocess.run((*words, *requirements), capture_output=True, text=True, timeout=900, check=False)
    if pip.returncode != 0 and any(words in pip.stderr for words in NO_INDEX):
        pytest.skip(f"pip finds no {' '.join(requirements)} here: {pip.stderr.strip().splitlines()[-1]}")
    assert pip.returncode == 0, pip.stderr
    return directory / "bin"


def unpack(directory: Path, package: str) -> Path:
    """Unpacks a package of Debian, which the machine need not have installed; returns its folder usr/bin.

    Skips the test if apt-get does not find the package.
    """
    directory.mkdir()
    words = ("apt-get", "download", "--quiet", package)
    apt = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    if apt.returncode != 0:
        pytest.skip(f"apt-get finds no {package} here: {apt.stderr.strip().splitlines()[-1]}")
    [archive] = directory.glob("*.deb")
    subprocess.run(("dpkg", "--extract", archive, "."), cwd=directory, check=True, timeout=120)
    return directory / "usr/bin"


def environment_of(project_dir: Path, *, home: Path, programs: Path | None = None) -> dict[str, str]:
    """The environment of a shell after `eval "$(cluster sandbox env)"`, with nothing else about AWS.

    home: replaces the user's home and its settings. programs: a folder to put first on PATH.
    """
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CLUSTER_", "PYTHON", "XDG_"))
    }
    path = os.pathsep.join([*([str(programs)] if programs else []), kept.get("PATH", os.defpath)])
    shell = subprocess.run(
        ("bash", "-euc", f'evaluated="$({CLUSTER} sandbox env)"; eval "$evaluated"; exec env -0'),
        cwd=project_dir,
        env={**kept, "PATH": path, "HOME": str(home), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shell.returncode == 0, shell.stderr
    return dict(line.split("=", 1) for line in shell.stdout.split("\0") if "=" in line)


def own_address(env: Mapping[str, str]) -> str:
    """The address from which this machine reaches the hosts, from the sandbox's checkip page."""
    trusted = ssl.create_default_context(cafile=env["AWS_CA_BUNDLE"])
    with urllib.request.urlopen(env["CLUSTER_CHECKIP_URL"], context=trusted, timeout=10) as answer:
        address: str = answer.read().decode().strip()
    return address
