"""Mistakes that are recognised by what they print, or by how a process ends, and the line of advice that each gets.

To add one, add an entry here, or in the table beside this one that it belongs to, and its sample to
tests/unit/test_advice.py. `needle` has to stand in the line as it is, which is cheap to look for; `pattern` then
decides. Groups of the pattern can stand in the advice: {name}. What the user is to type stands between backticks there:
a command, `[table] key` or `[table] key = value` of cluster.toml, an option. tests/unit/test_hints.py applies it.
"""

from train.known_library_mistakes import LIBRARIES, MXNET_ISSUES
from train.known_s3_mistakes import S3
from train.mistake import Ending, Mistake

RESOURCES = (
    Mistake(
        "cudaMalloc",
        "the GPU's memory is full: a smaller `--batch-size`, `--dtype float16`, or more GPUs",
        pattern=r"cudaMalloc (?:retry )?failed: out of memory",
    ),
    Mistake(
        "CUDA: out of memory",
        "the GPU's memory is full: a smaller `--batch-size`, `--dtype float16`, or more GPUs",
    ),
    Mistake(
        "std::bad_alloc",
        "the node's memory is full: a smaller `--batch-size`, fewer workers on a node, or a larger instance_type",
    ),
    Mistake(
        "Failed to allocate CPU Memory",
        "the node's memory is full: a smaller `--batch-size`, fewer workers on a node, or a larger instance_type",
    ),
    Mistake(
        "MemoryError",
        "the node's memory is full: a smaller `--batch-size`, fewer workers on a node, or a larger instance_type",
        pattern=r"^(?:\w+\.)*MemoryError\b|_ArrayMemoryError",
    ),
    Mistake(
        "bind failed",
        "the scheduler's port on the head is taken: `cluster stop` ends what a job left; `cluster exec --node node-0 "
        "-- ss -tlnp` shows by whom",
        # up to 1.7: "(my_node_.port) != (-1) bind failed", since 1.8: "my_node_.port != -1 (-1 vs. -1) : bind failed"
        pattern=r"Check failed: \(?my_node_\.port\)? != .*bind failed",
    ),
    Mistake(
        "Address already in use",
        "another process on this node has that port: `cluster stop` ends what a job left; `cluster exec -- ss -tlnp` "
        "shows by whom",
    ),
    Mistake(
        "failed to get ip",
        "the interface that DMLC_INTERFACE names has no address on this node: leave it out, it is chosen for you",
        pattern=r"Check failed: !ip\.empty\(\)",
    ),
    Mistake(
        "Connection refused",
        "nothing listens there: the other process has ended, or has not begun; the first error above says more",
        pattern=r"^(?:\w+: )*ConnectionRefusedError: ",
    ),
    Mistake(
        "No space left on device",
        "a disk is full (`cluster exec -- df -h`): less in `[bootstrap] sync`, results to s3://, or a larger "
        "volume_size_gib",
    ),
    Mistake(
        "Too many open files", "too many files are open at once: raise `[train] open_files`, or fewer data threads"
    ),
    Mistake(
        "Resource temporarily unavailable",
        "too many threads for the node's limit: fewer by OMP_NUM_THREADS (`--env`), or fewer processes on a node",
        pattern=r"pthread_create.*Resource temporarily unavailable",
    ),
    Mistake(
        "OMP: Warning #",
        "OpenMP is set up twice in this process, which may be slow: leave OMP_* and KMP_* to `cluster train`",
    ),
    Mistake(
        "Segmentation fault: 11",
        "MXNet crashed: `--env DMLC_LOG_STACK_TRACE_DEPTH=20 --env MXNET_ENGINE_TYPE=NaiveEngine` shows where",
    ),
)

DOWNLOAD = (
    "the node cannot resolve the names of hosts on the internet: download the file on this machine, then send it with "
    "`[bootstrap] sync`, or with `cluster data put FILE s3://BUCKET/` and read it there"
)

# How those who download say that a host's name is not known.
DOWNLOADS = (
    Mistake(
        "[Errno -",  # getaddrinfo below Python's urllib and requests; MXNet's gluon.utils.download uses requests
        DOWNLOAD,
        pattern=r"\[Errno -[235]\] (?:Name or service not known|Temporary failure in name resolution|No address assoc)",
    ),
    Mistake(
        "Could not resolve host:",
        DOWNLOAD,
        pattern=r"curl: \(6\) Could not resolve host: |unable to access '[^']*': Could not resolve host: ",
    ),
    Mistake("unable to resolve host address", DOWNLOAD, pattern=r"^wget: unable to resolve host address"),
)

SCRIPTS = (
    Mistake(
        "FileNotFoundError: ",
        "{path} is not on the nodes: name it, or its folder, in `[bootstrap] sync`; paths are from that of "
        "cluster.toml",
        pattern=r"^(?:\w+: )*FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^']{1,200})'",
    ),
    Mistake(
        "can't open file",
        "{path} is not on the nodes: name it, or its folder, in `[bootstrap] sync`; paths are from that of "
        "cluster.toml",
        pattern=r"can't open file '(?P<path>[^']{1,200})': \[Errno 2\]",
    ),
    Mistake(
        "LocalFileSystem",
        "MXNet does not find this file on the node: `[bootstrap] sync` brings your own; s3:// is read from everywhere",
        pattern=r"LocalFileSystem.*No such file or directory",
    ),
    Mistake(
        "nan",
        "a metric is not a number any more: a lower `--lr`, `--warmup-epochs`, or a look at the data",
        # "Epoch[n] Train-x=nan" alone is nothing: before MXNet 1.2, reset metrics were printed so.
        pattern=r"(?i)(?:\bspeed:.*|\bvalidation[-:].*)=-?nan\b|\bloss[=:] ?-?nan\b",
        link=f"{MXNET_ISSUES}/4253",
    ),
    Mistake(
        'find("DMLC_',
        "a dist kv-store without the parameter server's processes: start it by `cluster train --kv-store dist_sync`, "
        "and let the script take `--kv-store`",
        pattern=r'Environment::Get\(\)->find\("DMLC_\w+"\)',
    ),
    Mistake(
        "--kv-store",
        'the script does not know `--kv-store`: set `[train] kv_store_option = "--kvstore"` if it calls it so, as the '
        'examples of Gluon do, or `[train] kv_store_option = ""` to add nothing',
        pattern=r"error: unrecognized arguments:.* --kv-store\b|\bNo such option:? '?--kv-store\b",
    ),
)

MISTAKES: tuple[Mistake, ...] = (*LIBRARIES, *S3, *RESOURCES, *DOWNLOADS, *SCRIPTS)

ENDINGS: tuple[Ending, ...] = (
    Ending(
        codes=frozenset({137}),
        advice="killed by SIGKILL: unless somebody did it, the node ran out of memory (`cluster exec -- sudo dmesg`): "
        "a smaller `--batch-size`, fewer workers on a node, or a larger instance_type",
    ),
    Ending(
        codes=frozenset({132}),
        advice="an illegal instruction: this build of MXNet, or of a package, is for a newer processor than the node's",
    ),
    Ending(
        codes=frozenset({139, 135}),
        advice="it crashed: `--env DMLC_LOG_STACK_TRACE_DEPTH=20 --env MXNET_ENGINE_TYPE=NaiveEngine` shows where",
    ),
    Ending(
        codes=frozenset({127}),
        advice="the command was not found on the node: python is there; other programs need their path, "
        "or `[bootstrap] setup`",
    ),
    Ending(codes=frozenset({126}), advice="the command may not be executed on the node: chmod +x, or python SCRIPT"),
)
