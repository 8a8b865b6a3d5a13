"""ps-lite's output with PS_VERBOSE=1, from every CPU wheel on PyPI.

Recorded with two servers and two workers on one machine. The lines are from server rank 0 and worker rank 1. The wheels
differ in the folder of their sources and in the lines there.
"""

LINES_OF_SOURCES = (
    ("1.5.1.post0", "", (290, 238, 50, 33)),
    ("1.6.0", "", (307, 254, 52, 42)),
    ("1.7.0.post2", "", (310, 257, 51, 45)),
    ("1.8.0.post0", "../3rdparty/ps-lite/", (310, 257, 51, 45)),
    ("1.9.1", "../3rdparty/ps-lite/", (310, 257, 51, 45)),
)


def _lines(folder: str, numbers: tuple[int, ...], bound: str, name: str) -> tuple[str, ...]:
    at = f"[21:40:33] {folder}src/"
    bind, connected, stopping, stopped = numbers
    return (
        f"{at}van.cc:{bind}: Bind to {bound}, is_recovery=0",
        f"{at}van.cc:{connected}: {name} is connected to others",
        f"{at}./zmq_van.h:{stopping}: {name} is stopping",
        f"{at}van.cc:{stopped}: {name} is stopped",
    )


# wheel: (lines of a server, lines of a worker)
LINES = {
    f"mxnet=={version}": (
        _lines(folder, numbers, "role=server, ip=127.0.0.1, port=44203", "S[8]"),
        _lines(folder, numbers, "role=worker, ip=127.0.0.1, port=51797", "W[11]"),
    )
    for version, folder, numbers in LINES_OF_SOURCES
}
