"""Sends the files that a job has created on this host, for `cluster results`.

    results JOB           those in its working folder and its output folder
    results JOB FOLDER    those in its folder of [data] results on a volume

Prints a line of JSON for each file, results_wire.File, and {"end": true}. Then it reads a line from stdin: the list of
the numbers of the files to send, from 0. For each it sends blocks, each after its length as 4 bytes; then a length of
0, or of -1 and a block with the error.
"""

import json
import os
import re
import struct
import sys
from collections.abc import Iterator

from node import job_folder, wire
from node.agent.work_folder import Entry, find_below, find_new

BLOCK_BYTES = 1 << 18
OURS = re.compile(r"record\.json|events|samples|ranks/.*|tensorboard/worker-\d+/events\.out\.tfevents\.\d+\.cluster")
"""The files that the supervisor writes to [data] results."""


def main() -> int:
    """Lists the files, and sends those that are asked for."""
    job, *folders = sys.argv[1:]
    files: list[Entry] = []
    try:
        for entry in find_files(job, folders):
            if entry is not None:
                wire.write_all(1, json.dumps(describe(entry)).encode() + b"\n")
                files.append(entry)
        wire.write_all(1, b'{"end": true}\n')
        for number in json.loads(sys.stdin.buffer.readline() or b"[]"):
            send(files[number])
    except BrokenPipeError:
        return 1  # the other side has ended
    return 0


def find_files(job: str, folders: list[str]) -> Iterator[Entry | None]:
    """Yields the job's files, as find_new."""
    if not folders:
        yield from find_new(job)
        return
    for entry in find_below(folders[0]):
        yield None if entry is not None and OURS.fullmatch(entry.name) else entry


def describe(entry: Entry) -> dict[str, object]:
    """Returns a file as a message."""
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        name = os.fsencode(entry.name).decode("utf-8", "replace")
        return {"name": name, "what": "its name is not UTF-8"}
    found = {"name": entry.name, "size_bytes": entry.size_bytes, "mtime_ns": entry.mtime_ns}
    return found if entry.what is None else {"name": entry.name, "what": entry.what}


def send(entry: Entry) -> None:
    """Sends a file's content, in the size that was listed, or the error that prevents that."""
    left = entry.size_bytes
    try:
        handle = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb", buffering=0) as stream:
            while block := stream.read(min(left, BLOCK_BYTES)):
                left -= len(block)
                wire.write_all(1, struct.pack(">i", len(block)) + block)
    except BrokenPipeError:
        raise
    except OSError as error:
        text = job_folder.describe(error).encode("utf-8", "replace")
        wire.write_all(1, struct.pack(">ii", -1, len(text)) + text)
        return
    wire.write_all(1, struct.pack(">i", 0))
