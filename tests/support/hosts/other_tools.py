"""Programs that nobody here wrote, installed from PyPI as they are, and led to a sandbox as docs/sandbox.md says."""

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

# What pip says when it is the index that it cannot reach, and not the package that is at fault.
NO_INDEX = ("No matching distribution found", "Could not find a version", "ConnectTimeoutError", "NewConnectionError")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A program, with the words that it always gets first. env: all of its environment; directory: where it runs."""

    program: str
    env: dict[str, str]
    directory: Path
    words: tuple[str, ...] = ()

    def run(self, *words: str, stdin: str = "", code: int = 0, timeout_s: float = 120) -> str:
        """Runs it with further words and checks its exit code; what it printed, on both of its streams."""
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
    """Makes a virtual environment with the requirements in it, of which its folder of programs is returned.

    Skips the test where pip has no index with such packages.
    """
    subprocess.run((python, "-m", "venv", str(directory)), check=True, timeout=120)
    words = (str(directory / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    pip = subprocess.run((*words, *requirements), capture_output=True, text=True, timeout=900, check=False)
    if pip.returncode != 0 and any(words in pip.stderr for words in NO_INDEX):
        pytest.skip(f"pip finds no {' '.join(requirements)} here: {pip.stderr.strip().splitlines()[-1]}")
    assert pip.returncode == 0, pip.stderr
    return directory / "bin"


def environment_of(project_dir: Path, *, home: Path, programs: Path | None = None) -> dict[str, str]:
    """The environment of a shell in which `eval "$(cluster sandbox env)"` was typed, and nothing else about AWS.

    home: the user's home, so that no settings of the real one play a part. programs: a folder to put first on PATH.
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
    """The address from which this machine reaches the hosts, as the sandbox's stand-in for checkip tells it."""
    trusted = ssl.create_default_context(cafile=env["AWS_CA_BUNDLE"])
    with urllib.request.urlopen(env["CLUSTER_CHECKIP_URL"], context=trusted, timeout=10) as answer:
        address: str = answer.read().decode().strip()
    return address
