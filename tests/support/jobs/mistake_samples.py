"""Lines that known mistakes print; see train/follow/known_mistakes.py."""

HTTP_ERROR = 'MXNetError: <?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>...</Message></Error>'

S3_SAMPLES = [
    # From S3's list of errors, as MXNet 1.7 prints them for a server that answers with each of them.
    ("PermanentRedirect", HTTP_ERROR.format("PermanentRedirect"), "isPermanentRedirected = False"),
    (
        "AuthorizationHeaderMalformed",
        (
            "<Error><Code>AuthorizationHeaderMalformed</Code><Message>The authorization header is malformed; the "
            "region 'us-east-1' is wrong; expecting 'eu-west-1'</Message>"
        ),
        "NotAuthorizationHeaderMalformedAtAll",
    ),
    # apache/mxnet#6329
    (
        "compile with DMLC_USE_S3=1",
        "[19:59:34] src/io.cc:44: Please compile with DMLC_USE_S3=1 to use S3",
        "compiled with DMLC_USE_S3=0",
    ),
    # 1.7: ImageRecordDataset, without staging; test_python_readers.py has the others
    (
        "No such file or directory: 's3://",
        "FileNotFoundError: [Errno 2] No such file or directory: 's3://bucket/train/a.idx'",
        "cp: No such file or directory: 's3://bucket/a'",
    ),
    ("NoSuchBucket", HTTP_ERROR.format("NoSuchBucket"), "NoSuchBuckets"),
    (
        "NoSuchKey",
        "botocore.errorfactory.NoSuchKey: An error occurred (NoSuchKey) when calling the GetObject operation",
        "NoSuchKeyring",
    ),
    # apache/mxnet#4578
    (
        "Cannot find any files that matches the URI",
        (
            "src/io/input_split_base.cc:163: Check failed: files_.size() != 0U (0 vs. 0) Cannot find any files that "
            "matches the URI patternz s3://deep-learn-data/imagenet1k-val.rec"
        ),
        "Cannot find any files",
    ),
    ("ExpiredToken", HTTP_ERROR.format("ExpiredToken"), "ExpiredTokens: 3"),
    ("AccessDenied", HTTP_ERROR.format("AccessDenied"), "AccessDeniedHandler installed"),
    ("InvalidAccessKeyId", HTTP_ERROR.format("InvalidAccessKeyId"), "InvalidAccessKeyIds"),
    ("SignatureDoesNotMatch", HTTP_ERROR.format("SignatureDoesNotMatch"), "SignatureDoesNotMatchers"),
    ("RequestTimeTooSkewed", HTTP_ERROR.format("RequestTimeTooSkewed"), "RequestTimeTooSkewedness"),
    ("SlowDown", HTTP_ERROR.format("SlowDown"), "lr schedule: SlowDown after epoch 3"),
    # 1.7
    (
        "S3_ACCESS_KEY_ID to use S3",
        "MXNetError: Need to set enviroment variable S3_ACCESS_KEY_ID to use S3",
        "S3_ACCESS_KEY_ID is set",
    ),
    # 1.7
    (
        " Could not resolve host: ",
        "Error: Check failed: curl_easy_perform(curl) == CURLE_OK: Could not resolve host: b.s3.amazonaws.com",
        "ping: Could not resolve host: b",
    ),
    # 1.7
    (
        "Failed to connect to ",
        (
            "Error: Check failed: curl_easy_perform(curl) == CURLE_OK: Failed to connect to 127.0.0.1 port 1: "
            "Connection refused"
        ),
        "Failed to connect to the dashboard",
    ),
    # 1.7, a .rec cut short
    (
        "Invalid RecordIO F",
        (
            "MXNetError: Check failed: stream_->Read(BeginPtr(*out_rec) + size, upper_align) == upper_align: "
            "Invalid RecordIO File upper_align=1024"
        ),
        "Invalid Record",
    ),
    # apache/mxnet#10193
    (
        "RecordIOWriter",
        "[12:26:01] src/recordio.cc:117: Check failed: p[0] == RecordIOWriter::kMagic",
        "using RecordIOWriter",
    ),
    # 1.7, a .rec cut short
    (
        "file do not align by 4 bytes",
        "MXNetError: Check failed: files_[i].size % align_bytes == 0: file do not align by 4 bytes",
        "align by 4 bytes",
    ),
]


# (needle of the entry, a line with the mistake, a line that looks like it). A line marked 1.7 was printed by MXNet
# 1.7.0.post2 when the mistake was made on purpose; apache/mxnet#N is an issue of its repository that has the line.
SAMPLES = [
    *S3_SAMPLES,
    # apache/mxnet#21165
    (
        "module 'numpy' has no attribute",
        "AttributeError: module 'numpy' has no attribute 'bool'.",
        "AttributeError: module 'numpy' has no attribute 'arrray'",
    ),
    # opencv/opencv-python#995
    (
        "numpy.core.multiarray failed to import",
        "ImportError: numpy.core.multiarray failed to import",
        "numpy.core.multiarray imported",
    ),
    # opencv/opencv-python#995
    (
        "compiled using NumPy 1.x cannot be run in",
        "A module that was compiled using NumPy 1.x cannot be run in",
        "versions of NumPy, modules must be compiled with NumPy 2.0.",
    ),
    # apache/mxnet#6787
    (
        "libcuda.so.1: cannot open shared object",
        "OSError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "loaded libcuda.so.1",
    ),
    # apache/mxnet#1081, #20953, #20279
    (
        ": cannot open shared object file",
        "OSError: libcudnn.so.8: cannot open shared object file: No such file or directory",
        "OSError: libmine.so.8: cannot open shared object file: No such file or directory",
    ),
    # amdegroot/ssd.pytorch#525
    (
        "libGL.so.1: cannot open shared object",
        "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
        "libGL.so.1 => /usr/lib/libGL.so.1",
    ),
    # apache/mxnet#16527
    (
        "no kernel image is available",
        (
            "MXNetError: [11:41:41] src/operator/mxnet_op.h:794: Check failed: err == cudaSuccess (48 vs. 0) : "
            "Name: mxnet_generic_kernel ErrStr:no kernel image is available for execution on the device"
        ),
        "no kernel is available",
    ),
    # apache/mxnet#4213
    (
        "CUDA driver version is insufficient",
        (
            "src/storage/storage.cc:38: Check failed: e == cudaSuccess || e == cudaErrorCudartUnloading CUDA: "
            "CUDA driver version is insufficient for CUDA runtime version"
        ),
        "CUDA driver version: 11.2",
    ),
    # apache/mxnet#3739
    (
        "Compile with USE_CUDA=1",
        "mxnet.base.MXNetError: [11:28:30] src/storage/storage.cc:78: Compile with USE_CUDA=1 to enable GPU usage",
        "compiled with USE_CUDA=1",
    ),
    # 1.7
    (
        "Compile MXNet with USE_CUDA=1",
        (
            "[19:39:30] src/imperative/./imperative_utils.h:92: GPU support is disabled. Compile MXNet with "
            "USE_CUDA=1 to enable GPU support."
        ),
        "MXNet was compiled with USE_CUDA=1",
    ),
    # apache/mxnet#8443
    (
        "CUDNN_STATUS_",
        "Check failed: (err) == (CUDNN_STATUS_SUCCESS) CUDNN_STATUS_NOT_INITIALIZED",
        "e == CUDNN_STATUS_SUCCESS (8 vs. 0)",
    ),
    # 1.7
    (
        "Compression not supported with PushPull",
        (
            "MXNetError: Check failed: gradient_compression_->get_type() == CompressionType: :kNone: Compression not "
            "supported with PushPull"
        ),
        "compression is supported with push",
    ),
    # 1.7, without cv2
    ("assert cv2 is not None", "    assert cv2 is not None", "    assert cv2.__version__ is not None"),
    # Python 3.11
    (
        "No module named 'cv2'",
        "ModuleNotFoundError: No module named 'cv2'",
        "ModuleNotFoundError: No module named 'cv2extras'",
    ),
    # Python 3.12
    (
        "No module named 'distutils'",
        "ModuleNotFoundError: No module named 'distutils'",
        "ModuleNotFoundError: No module named 'distutil'",
    ),
    # Python 3.11
    ("No module named", "ModuleNotFoundError: No module named 'gluoncv.utils'", "skipping: No module named 'horovod'"),
    # apache/mxnet#16803
    (
        "cudaMalloc",
        "src/storage/./pooled_storage_manager.h:157: cudaMalloc failed: out of memory",
        "cudaMallocHost is used",
    ),
    # MVIG-SJTU/AlphaPose#493
    (
        "CUDA: out of memory",
        "mshadow/stream_gpu-inl.h:184: Check failed: e == cudaSuccess: CUDA: out of memory",
        "CUDA: memory 16 GB",
    ),
    # setuptools 82
    (
        "No module named 'pkg_resources'",
        "ModuleNotFoundError: No module named 'pkg_resources'",
        "ModuleNotFoundError: No module named 'pkg_resources_mine'",
    ),
    # [train] setup; bash, dash and Python 3.11
    ("pip: command not found", "bash: line 1: pip: command not found", "zip: command not found"),
    ("pip: not found", "sh: 1: pip: not found", "zip: not found"),
    (
        "No module named pip",
        "/home/ubuntu/.cluster/env/0a1b/bin/python: No module named pip",
        "python: No module named zip",
    ),
    ("No CUDA GPUs are available", "RuntimeError: No CUDA GPUs are available", "CUDA GPUs are available"),
    (
        "module 'torch._C' has no attribute '_cuda_",
        "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
        "module 'torch._C' has an attribute",
    ),
    (
        "Attempting to deserialize object on a CUDA device",
        (
            "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. "
            "If you are running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu')"
        ),
        "deserialize object on a CUDA device",
    ),
    (
        "CUDA error: invalid device ordinal",
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        "CUDA error: invalid argument",
    ),
    # pip 23, as a user and in Debian
    (
        "error: externally-managed-environment",
        "error: externally-managed-environment",
        "the environment is externally managed",
    ),
    (
        "Defaulting to user installation because",
        "Defaulting to user installation because normal site-packages is not writeable",
        "Defaulting to user root",
    ),
    # PyTorch 2.13
    (
        "DefaultCPUAllocator: ",
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 4000000000000000 bytes. Error code 12 (Cannot allocate memory)"
        ),
        "DefaultCPUAllocator: ready",
    ),
    ("ZeroDivisionError: ", "ZeroDivisionError: division by zero", "caught ZeroDivisionError: division by zero"),
    (
        "Expected more than 1 value per channel when training",
        "ValueError: Expected more than 1 value per channel when training, got input size torch.Size([1, 8])",
        "Expected more",
    ),
    # JAX 0.10.2
    (
        "coordinator_address should be defined",
        "ValueError: coordinator_address should be defined.",
        "coordinator_address is defined",
    ),
    (
        "Number of processes must be defined",
        "ValueError: Number of processes must be defined.",
        "The number of processes must be positive.",
    ),
    # PyTorch 2.13
    ("Torch not compiled with CUDA enabled", "AssertionError: Torch not compiled with CUDA enabled", "Torch compiled"),
    (
        "Found no NVIDIA driver on your system",
        (
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and "
            "installed a driver from http://www.nvidia.com/Download/index.aspx"
        ),
        "Found NVIDIA driver",
    ),
    (
        "Distributed package doesn't have NCCL built in",
        "[rank0]: RuntimeError: Distributed package doesn't have NCCL built in",
        "NCCL version 2.27",
    ),
    (
        "ProcessGroupNCCL is only supported with GPUs",
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "ProcessGroupNCCL created",
    ),
    (
        "Expected to have finished reduction in the prior iteration",
        (
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This "
            "error indicates that your module has parameters that were not used in producing loss."
        ),
        "finished reduction",
    ),
    (
        "Default process group has not been initialized",
        ("ValueError: Default process group has not been initialized, please make sure to call init_process_group."),
        "process group has been initialized",
    ),
    (
        "CUDA out of memory",
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of "
            "14.58 GiB of which 11.56 MiB is free."
        ),
        "CUDA memory",
    ),
    # in a container with shm_size = "64m"
    (
        "shared memory(shm)",
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_7_42_0>: No space left on device (28)"),
        "uses shared memory(shm)",
    ),
    ("on device: '/dev/shm/", "OSError: [Errno 28] No space left on device: '/dev/shm/a'", "cache: /dev/shm"),
    # Python 3.11
    (
        "CERTIFICATE_VERIFY_FAILED",
        (
            "urllib.error.URLError: <urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable "
            "to get local issuer certificate (_ssl.c:1006)>"
        ),
        "CERTIFICATE_VERIFY_FAILED is off",
    ),
    ("EOFError: EOF when reading a line", "EOFError: EOF when reading a line", "EOFError"),
    (
        "images must be bigger than the batch size",
        (
            "mxnet/src/io/iter_image_recordio_2.cc:318: Check failed: !overflow number of input images must be bigger "
            "than the batch size"
        ),
        "a batch size of 128",
    ),
    # PyTorch's torch/utils/data/_utils/signal_handling.py
    (
        "out of shared memory",
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
            "workers are out of shared memory. Please try to raise your shared memory limit."
        ),
        "shared memory: 8 GiB",
    ),
    # the C++ runtime
    ("std::bad_alloc", "terminate called after throwing an instance of 'std::bad_alloc'", "std::bad_cast"),
    # 1.7, under ulimit -v
    ("Failed to allocate CPU Memory", "MXNetError: Failed to allocate CPU Memory", "allocated CPU Memory"),
    # numpy 1.23
    (
        "MemoryError",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array",
        "caught a MemoryError, going on",
    ),
    # 1.7, and apache/mxnet#13526
    (
        "bind failed",
        "mxnet.base.MXNetError: [08:18:33] src/van.cc:291: Check failed: (my_node_.port) != (-1) bind failed",
        "the dashboard's bind failed",
    ),
    # Python 3.11
    ("Address already in use", "OSError: [Errno 98] Address already in use", "Address in use"),
    # Python 3.11
    (
        "No space left on device",
        "OSError: [Errno 28] No space left on device: 'model-0001.params'",
        "space left on device: 3 GB",
    ),
    # Python 3.11, under ulimit -n
    ("Too many open files", "OSError: [Errno 24] Too many open files: '/etc/hosts'", "open files: 20"),
    # MIC-DKFZ/nnUNet#1343
    (
        "Resource temporarily unavailable",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 50 of 64: Resource temporarily unavailable",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
    ),
    # 1.7
    ("Segmentation fault: 11", "Segmentation fault: 11", "no segmentation fault"),
    # requests 2.34, as MXNet 1.9 uses it
    (
        "[Errno -",
        (
            "requests.exceptions.ConnectionError: HTTPConnectionPool(host='data.invalid', port=80): Max retries "
            "exceeded with url: /x (Caused by NameResolutionError(\"HTTPConnection(host='data.invalid', port=80): "
            "Failed to resolve 'data.invalid' ([Errno -2] Name or service not known)\"))"
        ),
        "socket.gaierror: [Errno -8] Servname not supported for ai_socktype",
    ),
    # curl 7.88
    (
        "Could not resolve host:",
        "curl: (6) Could not resolve host: data.invalid",
        "the dashboard: Could not resolve host: data.invalid",
    ),
    # wget 1.21
    (
        "unable to resolve host address",
        "wget: unable to resolve host address 'data.invalid'",
        "sudo: unable to resolve host address",
    ),
    # Python 3.11
    (
        "FileNotFoundError: ",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/labels.txt'",
        "FileNotFoundError: nothing",
    ),
    # Python 3.11
    (
        "can't open file",
        "/usr/bin/python3: can't open file '/home/ubuntu/p/train.py': [Errno 2] No such file or directory",
        "can't open file of yesterday",
    ),
    # 1.7
    (
        "LocalFileSystem",
        "MXNetError: LocalFileSystem.ListDirectory /nope error: No such file or directory",
        "LocalFileSystem is used",
    ),
    # zhreshold/mxnet-ssd#136, apache/mxnet#5528
    ("nan", "Epoch[4] Batch [2140]\tSpeed: 6.44 samples/sec\tTrain-CrossEntropy=nan", "Epoch[7] Train-accuracy=nan"),
    # 1.7
    (
        'find("DMLC_',
        'MXNetError: Check  notnull: Environment::Get()->find("DMLC_NUM_WORKER") ',
        'find("DMLC_ROLE") == worker',
    ),
    # Python's argparse
    (
        "--kv-store",
        "train.py: error: unrecognized arguments: --kv-store dist_sync",
        "train.py: error: unrecognized arguments: --epochs 3",
    ),
]
