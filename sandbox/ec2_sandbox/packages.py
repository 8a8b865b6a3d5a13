"""Packages of the machine's distribution on the sandbox's hosts, which cannot reach a package server.

The machine downloads missing packages from its own sources. Hosts see the files in /run/host/packages and install them:
running hosts immediately, other hosts at their first boot (ec2_sandbox/hosts/pid1.py).
"""

import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ec2_sandbox.errors import SandboxError
from ec2_sandbox.hosts.inside import words_inside
from ec2_sandbox.paths import HostStatus

FETCH_TIMEOUT_S = 1800
MAX_THREADS = 8
SEEN_AT = Path("/run/host/packages")
INSTALL = "/usr/lib/ec2-sandbox/install-packages"  # in hosts/root


def fetch(packages: Sequence[str], packages_dir: Path) -> Path | None:
    """Downloads packages and their dependencies into a new folder.

    Returns the folder, or None if the machine, and therefore all hosts, already have them. Raises SandboxError with
    apt-get's errors.
    """
    if shutil.which("apt-get") is None:
        raise SandboxError("Installing packages needs apt-get, which this machine does not have.")
    unfinished = packages_dir / ".unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / "partial").mkdir(parents=True)
    words = (
        "apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "--download-only",
        "--option", f"Dir::Cache::archives={unfinished}", "--option", "APT::Sandbox::User=root",
        "--option", "Debug::NoLocking=1", "--", *packages,  # an ordinary user may not lock; it installs nothing here
    )  # fmt: skip
    done = _run(words)
    if done.returncode != 0:
        _run(("apt-get", "update", "--quiet"))
        done = _run(words)
    if done.returncode != 0:
        message = [line for line in done.stdout.splitlines() if line.startswith("E:")] or done.stdout.splitlines()[-5:]
        what = f"Could not download the packages: {' '.join(packages)}"
        raise SandboxError("\n".join([what, *message]), hint="apt-cache search NAME")
    fetched = list(unfinished.glob("*.deb"))
    for path in (unfinished / "partial", unfinished / "lock"):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if not fetched:
        unfinished.rmdir()
        return None
    folder = packages_dir / f"{len(list(packages_dir.iterdir())):04}"
    return unfinished.rename(folder)


def install(folder: Path, hosts: Sequence[HostStatus]) -> None:
    """Installs the packages of a folder on running hosts. Raises SandboxError with the first failure."""
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        results = [pool.submit(_install, folder, host) for host in hosts]
    for result in results:
        result.result()


def _install(folder: Path, host: HostStatus) -> None:
    assert host.pid is not None  # noqa: S101 -- it runs
    done = _run(words_inside(host.pid, INSTALL, str(SEEN_AT / folder.name)))
    if done.returncode != 0:
        message = "\n".join(done.stdout.splitlines()[-10:])
        raise SandboxError(f"Could not install the packages on {host.instance_id}:\n{message}")


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        errors="replace", timeout=FETCH_TIMEOUT_S,
    )  # fmt: skip
