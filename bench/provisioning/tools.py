"""Other launchers from PyPI, each in its own virtual environment in the user's cache."""

import shutil
import subprocess
import sys
from pathlib import Path

from foundation.user_folders import cache_folder

INSTALL_TIMEOUT_S = 600.0


class InstallError(Exception):
    """A launcher cannot be installed. The message is pip's last line."""


def install(name: str, *requirements: str) -> Path:
    """Returns the folder of programs in an environment with these requirements. Reuses an existing environment.

    Raises InstallError.
    """
    root = cache_folder() / "bench" / name
    done = root / ".installed"
    wanted = "\n".join(requirements)
    if done.exists() and done.read_text() == wanted:
        return root / "bin"
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(root)], check=True)
    words = [str(root / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    try:
        pip = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"pip was not done after {INSTALL_TIMEOUT_S:.0f} s") from error
    if pip.returncode != 0:
        raise InstallError(pip.stderr.strip().splitlines()[-1])
    done.write_text(wanted)
    return root / "bin"
