"""Mistakes with what is installed on the nodes; see train/known_mistakes.py."""

from train.mistake import Mistake

MXNET_ISSUES = "https://github.com/apache/mxnet/issues"

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
    Mistake(
        "no kernel image is available",
        "this MXNet has no machine code for this GPU: `cluster oracle` says which wheel has; set `[bootstrap] mxnet`",
    ),
    Mistake(
        "invalid device function",
        "this MXNet has no machine code for this GPU: `cluster oracle` says which wheel has; set `[bootstrap] mxnet`",
        pattern=r"ErrStr:invalid device function|cudaErrorInvalidDeviceFunction",
    ),
    Mistake(
        "CUDA driver version is insufficient",
        "the node's NVIDIA driver is older than this MXNet's CUDA: a newer ami, or an older wheel by `[bootstrap] "
        "mxnet`",
    ),
    Mistake(
        "Compile with USE_CUDA=1",
        "this MXNet has no GPU support: leave out `--gpus`, or choose an mxnet-cuNNN wheel by `[bootstrap] mxnet`",
    ),
    Mistake(
        "Compile MXNet with USE_CUDA=1",
        "this MXNet has no GPU support: leave out `--gpus`, or choose an mxnet-cuNNN wheel by `[bootstrap] mxnet`",
    ),
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
    Mistake(
        "No module named",
        "{module} is not on the nodes: its package belongs in `[bootstrap] packages`, your own files in `[bootstrap] "
        "sync`",
        pattern=r"^(?:\w+: )*(?:ModuleNotFoundError|ImportError): No module named '?(?!mxnet\b|cv2'|distutils')"
        r"(?P<module>[\w.]+)",
    ),
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
