"""Parses the output of ps-lite, MXNet's parameter server, with PS_VERBOSE=1."""

import re

from train.engines.engine import Report

# The path depends on how MXNet was compiled: "src/van.cc" up to 1.7, "../3rdparty/ps-lite/src/van.cc" since 1.8.
VERBOSE = re.compile(r"\[\d\d:\d\d:\d\d\] (?:.*/)?(?:van|\w+_van)\.(?:cc|h):\d+: (.*)")
OWN = re.compile(r"\[\d\d:\d\d:\d\d\] (?:\S*/)?(?:\w*van|resender|postoffice)\.(?:cc|h):")
RANK = re.compile(r"([WS])\[(\d+)\] is connected to others")
BOUND = re.compile(r"Bind to role=(?:worker|server),.* ip=([0-9a-fA-F.:]+), port=(\d+)")
FAILURE = re.compile(r"(?i)fail|error|warn|fatal|cannot|unable")
FIRST_SERVER, FIRST_WORKER = 8, 9  # ps-lite's ids: servers have even ones, workers odd ones


def is_report(line: str) -> bool:
    """Whether a line is printed only because of PS_VERBOSE=1."""
    return VERBOSE.match(line) is not None


def read(line: str) -> Report | None:
    """The process's rank, or its address and port, in a line of ps-lite; None for other lines."""
    match = VERBOSE.match(line)
    if match is None:
        return None
    rank, bound = RANK.match(match.group(1)), BOUND.match(match.group(1))
    if rank:
        first = FIRST_WORKER if rank.group(1) == "W" else FIRST_SERVER
        return Report(rank=(int(rank.group(2)) - first) // 2)
    if bound:
        return Report(bound=(bound.group(1), int(bound.group(2))))
    return None


def is_own(text: str) -> bool:
    """Whether a line is ps-lite's own, such as "Resend", which it may print endlessly."""
    return text.startswith("[") and OWN.match(text) is not None


def is_failure(line: str) -> bool:
    """Whether a line reports an error, which ps-lite prints in the same form."""
    return FAILURE.search(line.partition(": ")[2]) is not None
