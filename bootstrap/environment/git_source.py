"""Packages at the URL of a git repository: their files, as an archive that the head builds like a source distribution.

git runs on the user's machine, with its keys and passwords, and runs nothing of the repository.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from bootstrap.environment.file_cache import BundleFile, copy_here
from bootstrap.environment.requirements import GIT_URL, find_name
from foundation.errors import ClusterError

MARK = "-git-"
"""In the names of these archives, before the version for tools that would ask git for it: setuptools_scm, pbr."""
VERSION_TAG = re.compile(r"v?([0-9]+(?:\.[0-9]+)+)")
SETTINGS = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
DEFAULTS = {"GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}


def fetch_git(line: str, cache: Path) -> BundleFile:
    """Fetches the files of a requirement `NAME @ git+URL@REF`, without history and submodules. Raises ClusterError."""
    found = GIT_URL.search(line)
    if found is None:
        raise ValueError(line)
    with tempfile.TemporaryDirectory(prefix="cluster-git-") as temporary:
        folder = Path(temporary)
        _run(["init", "--quiet"], folder)
        _run(["fetch", "--quiet", "--depth", "1", "--", found["url"], found["ref"] or "HEAD"], folder)
        commit = _run(["rev-parse", "FETCH_HEAD"], folder)
        tag = VERSION_TAG.fullmatch(found["ref"] or "")
        name = f"{find_name(line).replace('-', '_')}{MARK}{tag[1] if tag is not None else f'0+g{commit[:12]}'}"
        archive = folder / f"{name}.tar.gz"
        what = f"FETCH_HEAD:{found['folder'] or ''}"
        _run(["archive", f"--prefix={name}/", f"--output={archive.name}", what], folder)
        return copy_here(archive, cache)


def _run(words: list[str], folder: Path) -> str:
    """What git prints. Raises ClusterError with its last line."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, env={**DEFAULTS, **os.environ, **SETTINGS}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise ClusterError("[bootstrap] packages has the URL of a git repository", hint="install git here") from None
    if done.returncode != 0:
        message = done.stderr.strip().rpartition("\n")[2]
        raise ClusterError(f"git {' '.join(words)}: {message}", hint="check the URL and the branch, tag or commit")
    return done.stdout.strip()
