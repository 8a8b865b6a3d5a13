"""Surveys [data] url if it is a folder on a volume of the nodes, as survey.py does for S3."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta, Struct

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connections import on_all
from foundation.decode import decode
from foundation.errors import ClusterError
from foundation.remote_command import run_program
from train.job.survey import MAGIC, Data, Refusal, count

MOST_FILES = 10_000
TIMEOUT_S = 60.0
# Prints the files below a folder, and the first bytes of one of them: of the records that training reads, if any.
SCRIPT = r"""
import json, os, sys
folder, most, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
found = {"exists": os.path.isdir(folder), "complete": True, "files": [], "read": None, "begin": "", "error": None}
def fail(error):
    found["error"] = [error.filename or folder, error.strerror or str(error)]
for at, folders, names in os.walk(folder, onerror=fail) if found["exists"] else ():
    if len(found["files"]) >= most:
        found["complete"] = False
        break
    folders.sort()
    for name in sorted(names):
        path = os.path.join(at, name)
        try:
            found["files"].append([os.path.relpath(path, folder), os.path.getsize(path)])
        except OSError as error:
            fail(error)
records = [name for name, length in found["files"] if length and name.endswith(".rec")]
first = sorted(records, key=lambda name: not name.startswith("train/")) or [n for n, l in found["files"] if l]
if first and found["error"] is None:
    found["read"] = os.path.join(folder, first[0])
    try:
        with open(found["read"], "rb") as stream:
            found["begin"] = stream.read(size).hex()
    except OSError as error:
        fail(error)
found["files"] = sorted(found["files"])
print(json.dumps(found))
"""


class Look(Struct, frozen=True):
    """What a node found. error: (path, reason) of a file or folder that it cannot read."""

    exists: bool
    complete: bool
    files: tuple[tuple[str, Annotated[int, Meta(ge=0)]], ...]
    read: str | None
    begin: str
    error: tuple[str, str] | None


def find_folder_data(nodes: Sequence[ReadyNode], folder: str) -> Data:
    """The content of a folder, as the head sees it; `refused` names a node that cannot read it.

    Raises ClusterError if a node does not answer.
    """
    looks: dict[str, Look] = {}

    def look(node: ReadyNode) -> None:
        words = [node.facts.python, "-c", SCRIPT, folder, str(MOST_FILES), str(len(MAGIC))]
        said = node.connection.run(run_program(*words), timeout_s=TIMEOUT_S, what=f"looking at {folder}").last_line
        try:
            looks[node.host.name] = decode(said.encode(), Look)
        except (ValueError, json.JSONDecodeError) as error:
            raise ClusterError(f"{node.host.name}: an invalid answer about {folder}: {error}") from None

    on_all(nodes, look)
    return summarize(folder, {node.host.name: looks[node.host.name] for node in nodes})


def summarize(folder: str, looks: dict[str, Look]) -> Data:
    """Combines what all nodes have found, the head first. Pure."""
    head = next(iter(looks.values()))
    lacking = [name for name, look in looks.items() if not look.exists]
    if len(lacking) == len(looks):
        return Data(objects=0, records=0, bucket_exists=False)
    data = count([(name, size) for name, size in head.files], complete=head.complete)
    refused = [(name, *look.error) for name, look in looks.items() if look.error is not None]
    if lacking:
        refused.append((lacking[0], folder, "there is no such folder"))
    if refused:
        node, path, why = refused[0]
        return replace(data, refused=Refusal(what="read", where=f"{node}:{path}", code="", words=why))
    is_other = head.read is not None and head.read.endswith(".rec") and head.begin != MAGIC.hex()
    return replace(data, not_records=head.read if is_other else None)
