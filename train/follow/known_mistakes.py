"""Known mistakes: how they are recognised in a job's output or by an exit code, and one line of advice for each.

To add one, add an entry to the table that it belongs to, and its sample to tests/unit/train/follow/test_advice.py.
A line that contains `needle`, which is cheap to search for, is matched against `pattern`, whose named groups can be
used in the advice: {name}. What the user is to type is in backticks: a command, `[table] key` or `[table] key = value`
of cluster.toml, an option. tests/unit/provision/aws/test_hints.py tries all of them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from train.follow.events import Event
from train.follow.progress import LONGEST

MXNET_ISSUES = "https://github.com/apache/mxnet/issues"
SIGNAL_CODES = 128  # a process that signal N ended has the exit code 128 + N


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake that a line of output shows.

    pattern: a regular expression, compiled when a line has the needle; None: the needle is enough. link: to read more.
    """

    needle: str
    advice: str
    pattern: str | None = None
    link: str | None = None


NO_KERNEL = (
    "this MXNet has no machine code for this GPU: `cluster oracle` says which wheel has; set `[bootstrap] mxnet`"
)
NO_GPU_SUPPORT = (
    "this MXNet has no GPU support: leave out `--gpus`, or choose an mxnet-cuNNN wheel by `[bootstrap] mxnet`"
)
OTHER_REGION = "the bucket is in another region than the job reads from: `[provision] region` has to be the bucket's"
S3_UNKNOWN = (
    "S3's name cannot be resolved on the node: its subnet needs a way to S3 (a gateway endpoint, or the internet)"
)
NO_RECORDS = (
    "a file that is read is no whole .rec file: one that was cut short (`cluster data info FOLDER`), or another "
    "file in the folder, such as an .idx: MXNet reads all that is in it"
)
GPU_MEMORY = "the GPU's memory is full: a smaller `--batch-size`, `--dtype float16`, or more GPUs"
MEMORY = "the node's memory is full: a smaller `--batch-size`, fewer workers on a node, or a larger instance_type"
NOT_ON_NODES = (
    "{path} is not on the nodes: name it, or its folder, in `[bootstrap] sync`; paths are from that of cluster.toml"
)
DOWNLOAD = (
    "the node cannot resolve the names of hosts on the internet: download the file on this machine, then send it with "
    "`[bootstrap] sync`, or with `cluster data put FILE s3://BUCKET/` and read it there"
)
CRASHED = "it crashed: `--env DMLC_LOG_STACK_TRACE_DEPTH=20 --env MXNET_ENGINE_TYPE=NaiveEngine` shows where"

NO_MODULE = Mistake(
    "No module named",
    "{module} is not on the nodes: its package belongs in `[bootstrap] packages`, your own files in `[bootstrap] sync`",
    pattern=r"^(?:\w+: )*(?:ModuleNotFoundError|ImportError): No module named '?(?!mxnet\b|cv2'|distutils')"
    r"(?P<module>[\w.]+)",
)
"""What lies beside the program on this machine makes this advice more precise: missing_module.py."""

LIBRARIES = (
    Mistake(
        "module 'numpy' has no attribute",
        "numpy is too new for MXNet, which needs numpy < 1.24: pin it by `[bootstrap] packages`, or leave numpy out",
        pattern=r"has no attribute '(?:bool|int|float|object|complex|str|PZERO)'",
        link=f"{MXNET_ISSUES}/21165",
    ),
    Mistake(
        "numpy.core.multiarray failed to import",
        "a package was built for another numpy than the one that MXNet needs (< 1.24): take an older version of it in "
        "`[bootstrap] packages`",
    ),
    Mistake(
        "compiled using NumPy 1.x cannot be run in",
        "numpy 2 is installed, and MXNet needs numpy < 1.24: leave numpy out of `[bootstrap] packages`, or pin it",
    ),
    Mistake(
        "libcuda.so.1: cannot open shared object",
        "this node has no NVIDIA driver: take a GPU instance type, or a wheel without CUDA by `[bootstrap] mxnet`",
    ),
    Mistake(
        ": cannot open shared object file",
        "{library} of CUDA is not on this node: choose the wheel of the image's CUDA by `[bootstrap] mxnet` "
        "(`cluster oracle`), or let setup put it into LD_LIBRARY_PATH",
        pattern=r"(?P<library>lib(?:cudart|cudnn|cublas\w*|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvToolsExt)\.so[.\d]*):",
    ),
    Mistake(
        "libGL.so.1: cannot open shared object",
        "opencv-python needs a desktop's libraries: take opencv-python-headless in `[bootstrap] packages`",
    ),
    Mistake("no kernel image is available", NO_KERNEL),
    Mistake(
        "invalid device function", NO_KERNEL, pattern=r"ErrStr:invalid device function|cudaErrorInvalidDeviceFunction"
    ),
    Mistake(
        "CUDA driver version is insufficient",
        "the node's NVIDIA driver is older than this MXNet's CUDA: a newer ami, or an older wheel by `[bootstrap] "
        "mxnet`",
    ),
    Mistake("Compile with USE_CUDA=1", NO_GPU_SUPPORT),
    Mistake("Compile MXNet with USE_CUDA=1", NO_GPU_SUPPORT),
    Mistake(
        "CUDNN_STATUS_",
        "cuDNN fails: often too little GPU memory (a smaller `--batch-size`), or a cuDNN of another CUDA in "
        "LD_LIBRARY_PATH",
        pattern=r"CUDNN_STATUS_(?:NOT_INITIALIZED|EXECUTION_FAILED|INTERNAL_ERROR|ALLOC_FAILED|ARCH_MISMATCH)",
    ),
    Mistake(
        "Compression not supported with PushPull",
        "since MXNet 1.7, Module and Trainer cannot compress gradients, whatever their settings: leave it out; "
        'or set `[bootstrap] mxnet = "mxnet==1.6.0"` (V100: "mxnet-cu90==1.6.0.post0"); or call push and pull instead '
        "of pushpull in a script of your own",
    ),
    Mistake(
        "USE_DIST_KVSTORE=1",
        "this MXNet was built without the parameter server: the wheels of PyPI have it, and so do builds with "
        "USE_DIST_KVSTORE=1 in `[bootstrap] build_options`",
    ),
    Mistake(
        "USE_OPENCV",
        "this MXNet was built without OpenCV, and cannot decode images: the wheels of PyPI have it",
        pattern=r"(?i)\b(?:build|compile\w*|built) with\b.*USE_OPENCV",
    ),
    Mistake("ImageRec need opencv to process", "this MXNet was built without OpenCV: the wheels of PyPI have it"),
    Mistake(
        "assert cv2 is not None",
        'mx.recordio.pack_img and unpack_img need cv2: `[bootstrap] packages = ["opencv-python-headless<4.8"]`',
    ),
    Mistake(
        "No module named 'cv2'",
        '`[bootstrap] packages = ["opencv-python-headless<4.8"]` brings cv2, in a version for MXNet\'s numpy',
    ),
    Mistake(
        "No module named 'distutils'",
        'distutils is gone from Python 3.12: set `[bootstrap] packages = ["setuptools<81"]`, or '
        '`[bootstrap] python = "3.11"`',
    ),
    NO_MODULE,
    Mistake(
        "has no attribute 'isAlive'",
        'this code is older than Python 3.9: Thread.isAlive is is_alive there; or set `[bootstrap] python = "3.8"`',
    ),
    Mistake(
        "' not found (required by",
        "a binary was built for a newer system than the node's: another version of its package, or a newer ami",
        pattern=r"version `(?:GLIBC|GLIBCXX|CXXABI|GOMP)_[\d.]+' not found",
    ),
)

# S3's error codes.
S3_CODES = {
    "PermanentRedirect": OTHER_REGION,
    "TemporaryRedirect": "S3 sends reads of this bucket elsewhere, as it does for a new bucket, or one of another "
    "region: try again later, or see `[provision] region`",
    "AuthorizationHeaderMalformed": OTHER_REGION,
    "NoSuchBucket": "there is no such bucket: see `[data] url`, or make it by `cluster data put --create-bucket FOLDER "
    "URL`",
    "NoSuchKey": "there is no such object: `cluster data ls` shows what is there; see `[data] url`",
    "AccessDenied": "S3 refuses: a job may read `[data] url` and what its arguments and variables name, write "
    "`[data] results`, and delete nothing, as far as you may (`cluster verify`, `cluster iam-policy`); with "
    '`[provision] instance_profile = "auto"` it may use `[data] url` and `[data] results` alone, after `cluster up`',
    "InvalidAccessKeyId": "AWS does not know these credentials: look at AWS_ACCESS_KEY_ID and your profile on this "
    "machine",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key: look at AWS_SECRET_ACCESS_KEY and your "
    "profile",
    "RequestTimeTooSkewed": "the node's clock is wrong: `cluster verify` shows by how much; `cluster exec -- sudo "
    "chronyc makestep` sets it",
}

S3 = (
    *(Mistake(code, advice, pattern=rf"\b{code}\b") for code, advice in S3_CODES.items()),
    Mistake(
        "compile with DMLC_USE_S3=1",
        'this MXNet cannot open s3:// by itself: set `[data] mode = "auto"`, by which workers read and save '
        "there; a process that is no worker, or runs another Python than the nodes' own, cannot use s3://",
    ),
    Mistake(
        "No such file or directory: 's3://",
        "{path}: Python's open() does not know s3://. For MXNet's own code set `[data] mode = \"stage\"`: "
        "ImageRecordDataset, RecordFileDataset, MXIndexedRecordIO and ImageIter, with their .idx files, then read it; "
        "other Python code has to fetch the file itself, with boto3, say",
        pattern=r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>s3://[^']{1,200})'",
    ),
    Mistake(
        "Cannot find any files that matches the URI",
        "nothing is there: `cluster data ls` shows what is; a folder's URL ends in /",
    ),
    Mistake(
        "ExpiredToken",
        "the job's credentials have run out, and MXNet cannot renew them: start it again; an instance_profile and "
        '`[data] mode = "stage"` have them renewed',
        pattern=r"\bExpiredToken(?:Exception)?\b",
    ),
    Mistake(
        "SlowDown",
        "S3 asks for fewer requests at once: fewer `--data-nthreads` or workers, or the data under several prefixes",
        pattern=r"<Code>SlowDown</Code>|\(SlowDown\)|S3 says SlowDown",
    ),
    Mistake(
        "S3_ACCESS_KEY_ID to use S3",
        "MXNet got no credentials for s3://: a job has some where `[data] url`, `[data] results`, its arguments or "
        "its variables name a place in S3, as in `cluster train --env MORE=s3://BUCKET/`; `cluster verify` shows "
        "whether there are any",
    ),
    Mistake(" Could not resolve host: ", S3_UNKNOWN, pattern=r"CURLE_OK: (?:Error: )?Could not resolve host: "),
    Mistake(
        "Couldn't resolve host name",  # while writing
        S3_UNKNOWN,
        pattern=r"s3_filesys\.cc:\d+: .*failed with error Couldn't resolve host name",
    ),
    Mistake(
        "Failed to connect to ",
        "S3 cannot be reached from the node: its subnet needs a way to S3 (a gateway endpoint, or the internet)",
        pattern=r"CURLE_OK: (?:Error: )?Failed to connect to ",
    ),
    Mistake("Invalid RecordIO F", NO_RECORDS),
    Mistake("RecordIOWriter", NO_RECORDS, pattern=r"Check failed: (?:p|header)\[0\] == RecordIOWriter: ?:kMagic"),
    Mistake("file do not align by 4 bytes", NO_RECORDS),
)

RESOURCES = (
    Mistake("cudaMalloc", GPU_MEMORY, pattern=r"cudaMalloc (?:retry )?failed: out of memory"),
    Mistake("CUDA: out of memory", GPU_MEMORY),
    Mistake("std::bad_alloc", MEMORY),
    Mistake("Failed to allocate CPU Memory", MEMORY),
    Mistake("MemoryError", MEMORY, pattern=r"^(?:\w+\.)*MemoryError\b|_ArrayMemoryError"),
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

# What programs print when a host name cannot be resolved.
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
        NOT_ON_NODES,
        pattern=r"^(?:\w+: )*FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^']{1,200})'",
    ),
    Mistake("can't open file", NOT_ON_NODES, pattern=r"can't open file '(?P<path>[^']{1,200})': \[Errno 2\]"),
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
"""All of them: the first that fits a line is taken."""

ENDINGS: dict[int, str] = {
    137: "killed by SIGKILL: unless somebody did it, the node ran out of memory (`cluster exec -- sudo dmesg`): "
    "a smaller `--batch-size`, fewer workers on a node, or a larger instance_type",
    132: "an illegal instruction: this build of MXNet, or of a package, is for a newer processor than the node's",
    139: CRASHED,
    135: CRASHED,
    127: "the command was not found on the node: python is there; other programs need their path, or "
    "`[bootstrap] setup`",
    126: "the command may not be executed on the node: chmod +x, or python SCRIPT",
}
"""By the exit code of the first process that ends badly; 128 + N is signal N."""


class Advisor:
    """Reads a job's events and gives each advice once."""

    def __init__(self, advise_on_module: Callable[[str], str] | None = None) -> None:
        """advise_on_module: the advice for a module that is missing, where more is known than its name."""
        self._advise_on_module = advise_on_module
        self._left = list(MISTAKES)
        self._last_line = ""
        self._ending = False

    def take(self, event: Event) -> str | None:
        """The advice for an event; None for nearly all of them."""
        if event.kind == "line":
            return self._read(event.text)
        if event.state is not None and event.state in {"ending", "done", "failed", "stopped"}:
            # Processes that end from now on were ended by the supervisor.
            self._ending = True
        if event.kind == "process" and event.process is not None and event.process.exit_code:
            return self._end(event.process.exit_code, event.process.signal)
        return None

    def _read(self, text: str) -> str | None:
        if text == self._last_line:
            return None
        self._last_line = text
        text = text[:LONGEST]
        for mistake in self._left:
            if mistake.needle in text:
                groups = find_groups(mistake, text)
                advice = render_advice(mistake, text)
                if advice is not None and groups is not None:
                    # Several entries may share one advice.
                    self._left = [other for other in self._left if other.advice != mistake.advice]
                    if mistake is NO_MODULE and self._advise_on_module is not None:
                        return self._advise_on_module(groups["module"])
                    return advice
        return None

    def _end(self, exit_code: int, signal: int | None) -> str | None:
        if self._ending:
            return None
        self._ending = True  # the first one to fail ends the job
        return ENDINGS.get(exit_code if signal is None else SIGNAL_CODES + signal)


def find_groups(mistake: Mistake, text: str) -> dict[str, str] | None:
    """The named groups of a line with the needle; None if the pattern does not match. Pure."""
    if mistake.pattern is None:
        return {}
    match = re.search(mistake.pattern, text)
    return match.groupdict() if match is not None else None


def render_advice(mistake: Mistake, text: str) -> str | None:
    """The advice for a line with the needle; None if the pattern does not match. Pure."""
    groups = find_groups(mistake, text)
    if groups is None:
        return None
    advice = mistake.advice
    for name, value in groups.items():
        advice = advice.replace(f"{{{name}}}", value)
    return f"{advice} ({mistake.link})" if mistake.link else advice
