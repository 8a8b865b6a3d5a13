"""Where a user's files are kept: the home folder, and what the XDG Base Directory Specification puts into it.

The specification has relative values ignored: https://specifications.freedesktop.org/basedir-spec/latest/
"""

import os
import pwd
from pathlib import Path

from foundation.errors import ClusterError


def home_folder() -> Path:
    """$HOME, or, where that is empty or relative, what the system's user database says. Raises ClusterError."""
    given = Path(os.environ.get("HOME", ""))
    if given.is_absolute():
        return given
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise ClusterError(
            f"there is no home folder: HOME is not set, and there is no user with the id {os.getuid()}",
            hint="export HOME=/a/folder/of/yours",
        ) from None


def state_folder() -> Path:
    """What has to outlive a command: $XDG_STATE_HOME/cluster, or ~/.local/state/cluster. Raises ClusterError."""
    return _folder("XDG_STATE_HOME", ".local/state") / "cluster"


def cache_folder() -> Path:
    """What can be fetched again: $XDG_CACHE_HOME/cluster, or ~/.cache/cluster. Raises ClusterError."""
    return _folder("XDG_CACHE_HOME", ".cache") / "cluster"


def correct_home() -> None:
    """Set HOME as above for libraries and child processes, which take an empty one for `/`."""
    if not Path(os.environ.get("HOME", "")).is_absolute():
        try:
            os.environ["HOME"] = str(home_folder())
        except ClusterError:
            os.environ.pop("HOME", None)  # reported where one is needed


def _folder(variable: str, below_home: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    return given if given.is_absolute() else home_folder() / below_home
