"""The usual mistakes of PyTorch, torchrun, NCCL, Gloo and JAX. Rows as in known_mistakes.py. Pure."""

from node.causes.mistake import Mistake

NO_GPU = (
    "PyTorch finds no GPU here: use a GPU instance type, or have the script ask torch.cuda.is_available() before it "
    "uses CUDA"
)
GLOO = 'NCCL needs GPUs: on nodes without them, use dist.init_process_group("gloo"), or the script\'s option for it'
SHM = "the data loader needs a larger /dev/shm: set `[container] shm_size`, or use fewer loader processes"
JAX = (
    'with `--launcher env`, pass num_processes=int(os.environ["JAX_NUM_PROCESSES"]) and '
    'process_id=int(os.environ["JAX_PROCESS_ID"]) to jax.distributed.initialize'
)
GPU_FULL = "the GPU's memory is full: use a smaller batch, torch.autocast, or more GPUs"
OWN_GPU = 'choose it by LOCAL_RANK, which counts from 0 on each node, and leave `[train] processes = "auto"`'
LOADER_KILLED = "a data loader's process was killed: if the node's memory is full, use fewer loader processes"
INDEX = "an index is too large, such as a label or a token: `--env CUDA_LAUNCH_BLOCKING=1` shows the line on a GPU"
KERNEL = "a CUDA kernel failed: `--env CUDA_LAUNCH_BLOCKING=1` shows the line"
NCCL = "NCCL failed in the network, in /dev/shm or in the driver: `--env NCCL_DEBUG=INFO` shows where"
CUT = "the checkpoint is incomplete: save to another name, and rename it; or it is another kind of file"
FILES = "too many files are open: raise `[train] open_files`, or use fewer loader processes"
NOT_FINITE = "a number is not finite: use a lower learning rate, clip gradients, or use bfloat16 instead of float16"

MESSAGES = {
    "Torch not compiled with CUDA enabled": NO_GPU,
    "Found no NVIDIA driver on your system": NO_GPU,
    "No CUDA GPUs are available": NO_GPU,
    "module 'torch._C' has no attribute '_cuda_": NO_GPU,
    "Attempting to deserialize object on a CUDA device": "a GPU saved this checkpoint, and this node has none: "
    'torch.load(..., map_location="cpu")',
    "CUDA error: invalid device ordinal": f"the script uses a GPU that this process does not have: {OWN_GPU}",
    "Duplicate GPU detected": f"several ranks use one GPU: {OWN_GPU}",
    "ncclInvalidUsage: ": f"NCCL is used wrongly, often because several ranks use one GPU: {OWN_GPU}",
    "Distributed package doesn't have NCCL built in": GLOO,
    "ProcessGroupNCCL is only supported with GPUs": GLOO,
    "CUDA out of memory": GPU_FULL,
    "CUDA error: out of memory": GPU_FULL,
    "CUBLAS_STATUS_ALLOC_FAILED": GPU_FULL,
    "CUDA error: device-side assert triggered": INDEX,
    "CUDA error: an illegal memory access": KERNEL,
    "CUDA error: CUBLAS_STATUS_": KERNEL,
    "CUDA error: uncorrectable ECC error": "the GPU's memory is broken: `cluster verify` checks it; replace the node",
    "CUDA error: no kernel image is available": "this PyTorch does not support this GPU: change `[bootstrap] torch`",
    "The NVIDIA driver on your system is too old": "the node's NVIDIA driver is too old for this PyTorch's CUDA: use a "
    "newer ami, or an older `[bootstrap] torch`",
    "operator torchvision::nms does not exist": "torchvision does not fit this PyTorch: `[bootstrap] packages`",
    "RuntimeError: Numpy is not available": "this PyTorch needs numpy < 2: pin it in `[bootstrap] packages`",
    "ncclSystemError: ": NCCL,
    "ncclUnhandledCudaError: ": NCCL,
    "Gloo connectFullMesh failed": "the ranks cannot connect: `--env GLOO_SOCKET_IFNAME=NAME` chooses the interface",
    "Detected mismatch between collectives on ranks": "the ranks call different collectives, or with other sizes",
    "EADDRINUSE": "rank 0's port is in use: `cluster stop` ends what a job left; a script should not set MASTER_PORT",
    "process group twice!": "the script calls init_process_group() twice: ask dist.is_initialized() first",
    "Default process group has not been initialized": "the script uses torch.distributed before "
    "dist.init_process_group(): call that first; a job's processes have the variables for it",
    "Expected to have finished reduction in the prior iteration": "some parameters got no gradient: pass "
    "find_unused_parameters=True to DistributedDataParallel, or use all of them in forward",
    "Expected to mark a variable ready only once": "a parameter is used twice in a step: pass static_graph=True to "
    "DistributedDataParallel, or use_reentrant=False to checkpoint()",
    "DDP expects same model across all ranks": "the ranks have different models: give all of them the same options",
    "is killed by signal: Killed": LOADER_KILLED,
    "out of shared memory": SHM,
    "unable to open shared memory object": SHM,
    "no longer possible. Please increase the limit": FILES,
    "received 0 items of ancdata": FILES,
    "finished its bootstrapping phase": 'the loader imports the script: put its code below if __name__ == "__main__"',
    "Cannot re-initialize CUDA in forked": 'a loader uses CUDA: pass it multiprocessing_context="spawn"',
    "but got num_samples=0": "the dataset is empty: check its path on the nodes, and `[data] url`",
    "IndexError: index out of range in self": INDEX,
    "to be on the same device": "tensors are on several devices: move the model and each batch by .to(device)",
    "returned nan values in its": NOT_FINITE,
    "Minimum loss scale reached": NOT_FINITE,
    "Attempting to unscale FP16 gradients": "GradScaler needs parameters in float32: do not call .half() on the model",
    'in state_dict: "module.': "the checkpoint is of DistributedDataParallel: save model.module.state_dict()",
    "in loading state_dict for ": "the checkpoint is of another model, or of other options of the program",
    "Weights only load failed": "torch.load reads only tensors: pass weights_only=False for a file that you trust",
    "failed finding central directory": CUT,
    "UnpicklingError: invalid load key": CUT,
    "inline_container.cc": "the file could not be written, as on a full disk: `cluster exec -- df -h`",
    "Number of processes must be defined": JAX,
    "Expected more than 1 value per channel when training": "the last batch has one example, too few for BatchNorm: "
    "create the data loader with drop_last=True",
}

GONE = "another rank has ended, or its node cannot be reached: the cause is in that rank's output"
LATE = "another rank did not come to a collective in time: it hangs, has ended, is slower, or leaves it out"
NO_START = "another rank did not start its process group in time: it has ended, hangs, or cannot be reached"
OF_PEERS = {
    "ncclRemoteError: ": GONE,
    ": Connection reset by peer. This is typically caused by": GONE,
    "ailed to recv, got 0 bytes": GONE,
    "Watchdog caught collective operation timeout": LATE,
    "Application timeout caused pair closure": LATE,
    "ms for recv operation to complete": LATE,
    "failed to pass monitoredBarrier": LATE,
    "The client socket has timed out after": NO_START,
    "The client socket has failed to connect to any": NO_START,
    " seconds waiting for clients. ": NO_START,
    "The connection to the C10d store has failed": NO_START,
    "RendezvousTimeoutError": NO_START,
    ") exited unexpectedly with exit code": "a data loader's process failed: its own message is in the output",
}

PYTORCH = (
    *(Mistake(needle, advice) for needle, advice in MESSAGES.items()),
    *(Mistake(needle, advice, of_peer=True) for needle, advice in OF_PEERS.items()),
    Mistake("pair.cc", GONE, pattern=r"pair\.cc:\d+\] (?:Connection closed by peer|Read error)", of_peer=True),
    Mistake(
        "rendezvous: environment variable ",
        "{name} is not set: start the script with `--launcher torchrun`, which sets it",
        pattern=r"environment variable (?P<name>\w+) expected, but not set",
    ),
    Mistake("Target ", INDEX, pattern=r"^IndexError: Target -?\d+ is out of bounds"),
    Mistake("shared memory(shm)", SHM, pattern=r"unable to \w+ shared memory\(shm\)"),
)
