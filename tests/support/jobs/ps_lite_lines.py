"""ps-lite's output with PS_VERBOSE=1, from every CPU wheel on PyPI.

Recorded with two servers and two workers on one machine. The lines are from server rank 0 and worker rank 1.
"""

# wheel: (lines of a server, lines of a worker)
LINES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mxnet==1.5.1.post0": (
        (
            "[21:40:33] src/van.cc:290: Bind to role=server, ip=127.0.0.1, port=44203, is_recovery=0",
            "[21:40:33] src/van.cc:238: S[8] is connected to others",
            "[21:40:33] src/./zmq_van.h:50: S[8] is stopping",
            "[21:40:33] src/van.cc:33: S[8] is stopped",
        ),
        (
            "[21:40:33] src/van.cc:290: Bind to role=worker, ip=127.0.0.1, port=51797, is_recovery=0",
            "[21:40:33] src/van.cc:238: W[11] is connected to others",
            "[21:40:33] src/./zmq_van.h:50: W[11] is stopping",
            "[21:40:33] src/van.cc:33: W[11] is stopped",
        ),
    ),
    "mxnet==1.6.0": (
        (
            "[21:40:40] src/van.cc:307: Bind to role=server, ip=127.0.0.1, port=54875, is_recovery=0",
            "[21:40:40] src/van.cc:254: S[8] is connected to others",
            "[21:40:41] src/./zmq_van.h:52: S[8] is stopping",
            "[21:40:41] src/van.cc:42: S[8] is stopped",
        ),
        (
            "[21:40:40] src/van.cc:307: Bind to role=worker, ip=127.0.0.1, port=49981, is_recovery=0",
            "[21:40:40] src/van.cc:254: W[11] is connected to others",
            "[21:40:41] src/./zmq_van.h:52: W[11] is stopping",
            "[21:40:41] src/van.cc:42: W[11] is stopped",
        ),
    ),
    "mxnet==1.7.0.post2": (
        (
            "[21:40:46] src/van.cc:310: Bind to role=server, ip=127.0.0.1, port=51917, is_recovery=0",
            "[21:40:46] src/van.cc:257: S[8] is connected to others",
            "[21:40:46] src/./zmq_van.h:51: S[8] is stopping",
            "[21:40:46] src/van.cc:45: S[8] is stopped",
        ),
        (
            "[21:40:46] src/van.cc:310: Bind to role=worker, ip=127.0.0.1, port=51487, is_recovery=0",
            "[21:40:46] src/van.cc:257: W[11] is connected to others",
            "[21:40:46] src/./zmq_van.h:51: W[11] is stopping",
            "[21:40:46] src/van.cc:45: W[11] is stopped",
        ),
    ),
    "mxnet==1.8.0.post0": (
        (
            (
                "[21:40:50] ../3rdparty/ps-lite/src/van.cc:310: Bind to role=server, ip=127.0.0.1, port=51725, "
                "is_recovery=0"
            ),
            "[21:40:51] ../3rdparty/ps-lite/src/van.cc:257: S[8] is connected to others",
            "[21:40:51] ../3rdparty/ps-lite/src/./zmq_van.h:51: S[8] is stopping",
            "[21:40:51] ../3rdparty/ps-lite/src/van.cc:45: S[8] is stopped",
        ),
        (
            (
                "[21:40:51] ../3rdparty/ps-lite/src/van.cc:310: Bind to role=worker, ip=127.0.0.1, port=50341, "
                "is_recovery=0"
            ),
            "[21:40:51] ../3rdparty/ps-lite/src/van.cc:257: W[11] is connected to others",
            "[21:40:51] ../3rdparty/ps-lite/src/./zmq_van.h:51: W[11] is stopping",
            "[21:40:51] ../3rdparty/ps-lite/src/van.cc:45: W[11] is stopped",
        ),
    ),
    "mxnet==1.9.1": (
        (
            (
                "[21:40:56] ../3rdparty/ps-lite/src/van.cc:310: Bind to role=server, ip=127.0.0.1, port=53785, "
                "is_recovery=0"
            ),
            "[21:40:56] ../3rdparty/ps-lite/src/van.cc:257: S[8] is connected to others",
            "[21:40:56] ../3rdparty/ps-lite/src/./zmq_van.h:51: S[8] is stopping",
            "[21:40:56] ../3rdparty/ps-lite/src/van.cc:45: S[8] is stopped",
        ),
        (
            (
                "[21:40:56] ../3rdparty/ps-lite/src/van.cc:310: Bind to role=worker, ip=127.0.0.1, port=42459, "
                "is_recovery=0"
            ),
            "[21:40:56] ../3rdparty/ps-lite/src/van.cc:257: W[11] is connected to others",
            "[21:40:56] ../3rdparty/ps-lite/src/./zmq_van.h:51: W[11] is stopping",
            "[21:40:56] ../3rdparty/ps-lite/src/van.cc:45: W[11] is stopped",
        ),
    ),
}
