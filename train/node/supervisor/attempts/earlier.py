"""Restores the log of a job that starts again on another head: only its copy in S3 is left of the first head."""

import os
from typing import Optional

from foundation.decode import decode
from train.job.protocol import LogLine
from train.node import job_folder


def restore(job: str, log: bytes) -> None:
    """Writes the events, without an incomplete last line, and each process's file, derived from them. Raises OSError.

    The job's folder must exist. Later attempts append to these files.
    """
    whole = log[: log.rfind(b"\n") + 1]
    with open(job_folder.path(job, "events"), "wb") as stream:
        stream.write(whole)
    ranks = job_folder.path(job, "ranks")
    os.makedirs(ranks, mode=0o700, exist_ok=True)
    for name, text in find_files(whole).items():
        with open(os.path.join(ranks, name + ".log"), "ab") as stream:
            stream.write(text)


def find_files(log: bytes) -> dict[str, bytes]:
    """Returns the content of each process's file by name, with the names of processes.file_name. Pure.

    Two processes share a file if they had the same rank in different attempts.
    """
    roles: dict[int, tuple[str, str]] = {}
    ranks: dict[int, int] = {}
    lines: dict[int, list[str]] = {}
    for raw in log.splitlines():
        try:
            line = decode(raw, LogLine)
        except ValueError:
            continue  # damaged; readers of the log skip it, too
        if line.p is None:
            continue
        if line.role is not None and line.host is not None:
            roles[line.p] = (line.role, line.host)
        if line.rank is not None:
            ranks[line.p] = line.rank
        if line.line is not None:
            lines.setdefault(line.p, []).append(line.line)
    found: dict[str, bytes] = {}
    for number, (role, host) in sorted(roles.items()):
        text = "".join(f"{one}\n" for one in lines.get(number, ()))
        name = _name(role, host, ranks.get(number), several=role == "launcher" and _is_on_each(roles, role))
        found[name] = found.get(name, b"") + text.encode("utf-8", "replace")
    return found


def _is_on_each(roles: dict[int, tuple[str, str]], role: str) -> bool:
    return len({host for other, host in roles.values() if other == role}) > 1


def _name(role: str, host: str, rank: Optional[int], *, several: bool) -> str:
    if role not in ("worker", "server"):
        return f"{role}-{host}" if role == "setup" or several else role
    return f"{role}@{host}" if rank is None else f"{role}-{rank}"
