"""Handles spot notices on a node: asks the instance metadata service for them, and informs the job's program.

The program finds the path of its notice file in $CLUSTER_NOTICE_FILE. It can wait for this file to exist, or for
SIGUSR1, which only processes with a handler for it get. Next to the file, the program writes

    $CLUSTER_NOTICE_FILE.saved      once its checkpoint is complete: {"url": ..., "epoch": ..., "batch": ...}
    $CLUSTER_NOTICE_FILE.progress   the last finished batch, regularly: {"epoch": ..., "batch": ...}

each atomically (it writes another file, then renames it).
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from urllib.parse import urlsplit

from node import job_folder, metadata
from node.setup import process_tree
from node.wire import Notice

PATH = "/latest/meta-data/spot/instance-action"
EVERY_S = 5.0
LONGEST_FILE = 4096
LARGEST = 1 << 31
VARIABLE = "CLUSTER_NOTICE_FILE"
ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"  # the AWS SDKs' variable
SAVED, PROGRESS = ".saved", ".progress"


def place_of(job: str, attempt: int) -> str:
    """Returns the path of an attempt's notice file on this host, in a folder for such files only."""
    return job_folder.path(job, "notice", f"attempt-{attempt}")


def parse_notice(text: str) -> Notice | None:
    """Parses the metadata service's answer. Returns None if it is not a notice. Pure."""
    try:
        found = json.loads(text)
        action = str(found["action"])[:40]
    except (ValueError, KeyError, TypeError):
        return None
    try:
        at: float | None = (
            datetime.strptime(found["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
        )
    except (ValueError, KeyError, TypeError):
        at = None
    return Notice(action=action, at=at)


def parse_numbers(data: bytes) -> dict[str, int]:
    """Returns the whole numbers from 0 to LARGEST - 1 in a JSON object; {} for anything else. Pure."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if type(value) is int and 0 <= value < LARGEST}


def find_notice(address: str) -> Notice | None:
    """Returns the spot notice of this instance, or None. Raises OSError if the service does not answer."""
    answer = metadata.get(PATH, address)
    return parse_notice(answer.text) if answer.status == 200 else None


def find_address(env: Mapping[str, str]) -> str:
    """Returns the host and port of the metadata service; the job's variables may name another one. Pure."""
    return urlsplit(env.get(ENDPOINT, "")).netloc or metadata.ADDRESS


async def watch(report: Callable[[Notice], None], address: str) -> None:
    """Asks for a notice every few seconds, and calls `report` once. Errors are ignored.

    A host without the metadata service causes such errors.
    """
    while True:
        with contextlib.suppress(OSError, ValueError):
            notice = await asyncio.to_thread(find_notice, address)
            if notice is not None:
                report(notice)
                return
        await asyncio.sleep(EVERY_S)


class NoticeFile:
    """The notice file of a process's program. path: see place_of."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: dict[str, tuple[int, int]] = {}

    def announce(self, processes: Iterable[process_tree.Process]) -> None:
        """Informs the program of a notice. Raises OSError."""
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        with open(self._path, "a"):
            pass
        for pid, began, _ in processes:
            if process_tree.start_time(pid) == began and process_tree.has_handler(pid, signal.SIGUSR1):
                with contextlib.suppress(OSError):  # it has just ended
                    os.kill(pid, signal.SIGUSR1)

    def read_new(self, suffix: str) -> dict[str, int] | None:
        """Returns the numbers that the program has written to one of its files since the last call, or None."""
        path = self._path + suffix
        try:
            found = os.stat(path)
            version = (found.st_mtime_ns, found.st_ino)
            if self._seen.get(suffix) == version:
                return None
            with open(path, "rb") as stream:
                data = stream.read(LONGEST_FILE)
        except OSError:
            return None
        self._seen[suffix] = version
        return parse_numbers(data)
