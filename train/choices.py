"""What some settings of [train] can be: apart from config.py, for those who do without cluster.toml."""

from typing import Literal

KvStore = Literal["local", "device", "dist_sync", "dist_async", "dist_device_sync", "dist_sync_device"]
Launcher = Literal["ssh", "local", "mpi"]
ENV_NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
"""An environment variable's name, to be matched in full."""
SHELL = ("bash", "-c")
"""What runs a command that is given as one line, as launch.py has it."""
