"""A user's folders: the home folder, and those of the XDG Base Directory Specification.

The specification says to ignore relative values: https://specifications.freedesktop.org/basedir-spec/latest/
"""

import getpass
import os
from pathlib import Path

from foundation.errors import ClusterError


def home_folder() -> Path:
    """$HOME, or the user database's entry if that is not set. Raises ClusterError."""
    try:
        return Path.home()
    except RuntimeError:
        raise ClusterError(
            f"no home folder: HOME is not set, and the system has no user with the id {os.getuid()}",
            hint="export HOME=/a/folder/of/yours",
        ) from None


def state_folder() -> Path:
    """The folder for state: $XDG_STATE_HOME/cluster, or ~/.local/state/cluster. Raises ClusterError."""
    return _folder("XDG_STATE_HOME", ".local/state") / "cluster"


def cache_folder() -> Path:
    """The folder for downloads: $XDG_CACHE_HOME/cluster, or ~/.cache/cluster. Raises ClusterError."""
    return _folder("XDG_CACHE_HOME", ".cache") / "cluster"


def find_user() -> str:
    """The name of the user who runs this process; "" if the user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the latter from Python 3.13 on
        return ""


def _folder(variable: str, below_home: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    return given if given.is_absolute() else home_folder() / below_home
