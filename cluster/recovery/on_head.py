"""The command that a job's supervisor runs on the head to replace lost nodes. Argument: the job.

The replacement is the same as from the user's machine, but uses the settings that this machine has sent
(head_client.py). The command reaches nodes at their private addresses, with the head's own key, and AWS with the
instance's role.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from bootstrap.environment.file_cache import cached_path
from cluster.app import App
from cluster.config import ClusterConfig, parse_config
from cluster.containers import find_login
from cluster.jobs import ask_head, open_head
from cluster.recovery.head_client import FOLDER, STATE, HeadSettings
from cluster.recovery.replacement import replace_lost
from cluster.session import describe
from cluster.views.terminal import write
from foundation.authorities import find_authorities
from foundation.decode import decode
from foundation.errors import ClusterError, NotFoundError
from foundation.files import write_whole
from foundation.user_folders import cache_folder, home_folder
from node.job_folder import describe as describe_error
from provision.files import ClusterFiles
from provision.membership import KnownInstances, sign_token
from train.job.payload import shipped_scripts


class HeadFiles(ClusterFiles):
    """The files of the cluster on its head. key: the head's own private key."""

    def __init__(self, root: Path, settings: HeadSettings, *, key: Path) -> None:
        super().__init__(root)
        self.private_key = key
        self._settings = settings

    def find_public_key(self) -> str | None:
        """Returns the public half of the user's key, which new nodes get at launch."""
        return self._settings.public_key or None

    def known_instances(self) -> KnownInstances:
        """Returns the instances that a head launched or the user's machine knew. Raises ClusterError."""
        known = super().known_instances()
        return replace(known, instance_ids=known.instance_ids | frozenset(self._settings.instances))

    def find_launch_key(self) -> bytes:
        """Returns the key that the user's machine has derived from the cluster's private key."""
        return self._settings.launch_key

    def new_token(self, *, now: float) -> str:
        """Returns a signed token, which proves the launch to the user's machine and to the next head."""
        return sign_token(self._settings.launch_key, now=now)


class HeadApp(App):
    """The App of the command on the head."""

    def __init__(self, settings: HeadSettings, *, folder: Path) -> None:
        super().__init__(config_path=folder / "cluster.toml")
        self.on_head = self._settings = settings
        self._folder = folder
        # What differs here: nodes are near, this node has the wheels, a job has its own files.
        self.overrides = {
            **settings.overrides,
            "cloud": "aws",
            "provision.region": settings.region,
            "provision.regions": [],
            "provision.ssh_address": "private",
            "provision.ssh_from": "10.0.0.0/8",  # "auto" is not for private addresses; the head changes no rule
            "bootstrap.sync": [],
            "train.script": shipped_scripts()[0],
        }

    @cached_property
    def config(self) -> ClusterConfig:
        """The settings in the user's cluster.toml, as sent to the head. Raises ConfigError."""
        return parse_config(self._settings.table, source="cluster.toml", overrides=self.overrides)

    @cached_property
    def files(self) -> ClusterFiles:
        """The records of this command, and the head's own key."""
        return HeadFiles(self._folder / STATE, self._settings, key=home_folder() / ".cluster/ssh/id_ed25519")


def main(words: Sequence[str]) -> int:
    """Replaces nodes of a job, and returns the exit code. All messages go to the job's log."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app, job = None, words[0]
    try:
        folder = home_folder() / FOLDER
        settings = read_settings(folder)
        prepare(settings, folder)
        app = HeadApp(settings, folder=folder)
        with open_head(app, describe(app)) as head:
            record = next((record for record in ask_head(head) if record.id == job), None)
        if record is None:
            raise NotFoundError(f"there is no job {job}")
        if record.spec.image is not None:
            find_login(app)  # raises before the launch if the registry's password is not on the head
        replace_lost(app, record)
    except (ClusterError, OSError) as error:
        # Not its hint, which is for another machine: the job's log names `cluster up`, which also updates the role.
        write(sys.stderr, f"error: {describe_error(error) if isinstance(error, OSError) else error}")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if app is not None:
            app.close()
    return 0


def read_settings(folder: Path) -> HeadSettings:
    """Returns the settings that the user's machine has sent. Raises OSError, ClusterError."""
    path = folder / "settings.json"
    try:
        return decode(path.read_bytes(), HeadSettings)
    except ValueError as error:
        raise ClusterError(f"{path} does not fit this version: {error}") from error


def prepare(settings: HeadSettings, folder: Path) -> None:
    """Sets this process's environment variables, and writes the files that the command expects. Raises OSError."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    os.environ["AWS_REGION"] = os.environ["AWS_DEFAULT_REGION"] = settings.region
    if settings.endpoint_url is not None:
        os.environ["AWS_ENDPOINT_URL"] = settings.endpoint_url
    if settings.private_ca and (trusted := find_authorities()) is not None:
        os.environ["AWS_CA_BUNDLE"] = trusted  # the system's certificates, which include the private CA's on the node
    keep_cache(cache_folder(), settings.records, wheels=home_folder() / ".cluster/files")
    known_hosts = folder / STATE / "known_hosts"
    known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(known_hosts, merge_pins(settings.pins, known_hosts).encode())


def keep_cache(cache: Path, records: Mapping[str, str], *, wheels: Path) -> None:
    """Makes a cache of the head's own wheels, with the given records. Raises OSError."""
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = cached_path(cache, "0", "0").parent.parent
    with suppress(FileExistsError):
        folder.symlink_to(wheels)
    for key, record in records.items():
        path = cache / f"{key}.json"
        path.parent.mkdir(exist_ok=True)
        write_whole(path, record.encode())


def merge_pins(sent: str, path: Path) -> str:
    """Returns the host keys that were sent, and those that this command has pinned since. Raises OSError."""
    own = path.read_text("ascii", errors="replace") if path.exists() else ""
    lines = {line.split()[0]: line for line in (*own.splitlines(), *sent.splitlines()) if line.strip()}
    return "".join(f"{line}\n" for line in lines.values())
