"""Parses the output of ps-lite, MXNet's parameter server, with PS_VERBOSE=1."""

import re

from node.engines.engine import Report

# The path depends on how MXNet was compiled: "src/van.cc" up to 1.7, "../3rdparty/ps-lite/src/van.cc" since 1.8.
VERBOSE = re.compile(r"\[\d\d:\d\d:\d\d\] (?:.*/)?(?:van|\w+_van)\.(?:cc|h):\d+: (.*)")
OWN = re.compile(r"\[\d\d:\d\d:\d\d\] (?:\S*/)?(?:(?:\w+_)?van|resender|postoffice)\.(?:cc|h):")
RANK = re.compile(r"([WS])\[(\d+)\] is connected to others")
BOUND = re.compile(r"Bind to role=(?:worker|server),.* ip=([0-9a-fA-F.:]+), port=(\d+)")
FAILURE = re.compile(r"(?i)fail|error|warn|fatal|cannot|unable")
FIRST_SERVER, FIRST_WORKER = 8, 9  # ps-lite's ids: servers have even ones, workers odd ones


def read(line: str) -> Report | None:
    """What a line of ps-lite reports; None for other lines."""
    match = VERBOSE.match(line)
    if match is None:
        return Report(is_noise=True) if OWN.match(line) is not None else None
    text = match[1]
    hidden = FAILURE.search(text) is None  # ps-lite prints errors in the same form
    rank, bound = RANK.match(text), BOUND.match(text)
    if rank:
        first = FIRST_WORKER if rank[1] == "W" else FIRST_SERVER
        return Report(rank=(int(rank[2]) - first) // 2, is_hidden=hidden, is_noise=True)
    return Report(bound=(bound[1], int(bound[2])) if bound else None, is_hidden=hidden, is_noise=True)
