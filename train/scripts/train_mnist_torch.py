"""Train a multi-layer perceptron or LeNet on handwritten digits with PyTorch's DistributedDataParallel.

Runs as one process, or as one rank of several: `torchrun train_mnist_torch.py`, or any launcher that sets RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Data is MNIST's four idx-ubyte files (--data-dir).
Needs Python 3.9, and PyTorch 1.13 or 2.x.
"""

import argparse
import contextlib
import functools
import itertools
import json
import logging
import math
import os
import struct
import sys
import time
from datetime import timedelta
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from common import ScriptError, options, schedule, script
from common.checkpoints import Checkpoint, Checkpoints, Saver

WITHOUT = (
    options.IMAGES, options.DISTORTION, "cluster", "num-layers", "num-classes", "initializer", "dtype",
    "data-train", "data-train-idx", "data-val", "data-val-idx", "num-examples", "data-nthreads", "test-io", "benchmark",
    "macrobatch-size", "optimizer", "top-k", "loss", "monitor",
)  # fmt: skip


def parse(arguments: List[str]) -> argparse.Namespace:
    """The options; exits with code 2 and a message if they are invalid."""
    parser = options.make_parser(__doc__, ("mlp", "lenet"), without=WITHOUT)
    add = parser.add_argument_group("process group").add_argument
    add("--dist-backend", choices=("auto", "gloo", "nccl"), default="auto", help="auto: nccl if every rank has a GPU")
    add("--dist-timeout", type=options.whole(1), default=120, help="seconds in which all ranks must join")
    return options.parse(parser, arguments)


if __name__ == "__main__":
    CHOSEN = parse(sys.argv[1:])  # before PyTorch is imported, which takes seconds

import torch  # noqa: E402 - see above
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.rendezvous import rendezvous  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import BatchSampler, DistributedSampler, TensorDataset  # noqa: E402

logger = logging.getLogger()
Batches = Iterable[Tuple[torch.Tensor, torch.Tensor]]
EDGE, CLASSES = 28, 10
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's training images, whose pixels are scaled to 0 to 1


def train(chosen: argparse.Namespace) -> None:
    """Trains as the options say.

    Raises ScriptError if the ranks cannot join each other, or data or a checkpoint cannot be used.
    """
    with join(chosen.dist_backend, chosen.dist_timeout) as ranks:
        script.log_as(ranks.rank)
        logging.getLogger("torch").setLevel(logging.WARNING)
        torch.manual_seed(chosen.seed)
        Training(chosen, ranks).run()


class Training:
    """A network, its optimizer and its data, on one rank."""

    def __init__(self, chosen: argparse.Namespace, ranks: "Ranks") -> None:
        self._options, self._ranks = chosen, ranks
        self._digits, self._validation = (read_idx_pair(chosen.data_dir, kind) for kind in ("train", "t10k"))
        parts = schedule.split_examples(len(self._digits), ranks.count)
        self._batches = schedule.batches_per_epoch(parts, chosen.batch_size)
        self._sampler = DistributedSampler(
            self._digits, ranks.count, ranks.rank, shuffle=True, seed=chosen.seed, drop_last=True
        )
        self._rate = schedule.learning_rate(chosen, self._batches)
        self._network = build(chosen.network).to(ranks.device)
        checkpoints = None
        if chosen.model_prefix and ranks.rank == 0:
            checkpoints = Checkpoints(chosen, f"PyTorch, network {chosen.network}", "sgd")
        self._start = self._find_start(checkpoints)
        if "params" in self._start.paths:
            self._network.load_state_dict(load_tensors(self._start.paths["params"]))
        self._model = self._network
        if ranks.gradients is not None:
            # Sends rank 0's weights to all ranks, and averages the gradients of all ranks in backward().
            self._model = DistributedDataParallel(self._network, process_group=ranks.gradients)
        self._optimizer = torch.optim.SGD(
            self._network.parameters(), lr=chosen.lr, momentum=chosen.mom, weight_decay=chosen.wd
        )
        if self._start.name:
            self._restore_momenta()
        self._saver = Saver(chosen, checkpoints, self._content, batches=self._batches)
        logger.info(
            "Rank %d of %d on %s, %d batches of %d per epoch, PyTorch %s", ranks.rank, ranks.count, ranks.device,
            self._batches, chosen.batch_size, torch.__version__,
        )  # fmt: skip

    def run(self) -> None:
        """Trains from the start position to the last epoch."""
        if self._start.epoch >= self._options.num_epochs:
            logger.info("Nothing to do: %d of %d epochs are done", self._start.epoch, self._options.num_epochs)
        for epoch in range(self._start.epoch, self._options.num_epochs):
            began = time.monotonic()
            report(epoch, "Train", self._train_epoch(epoch))
            logger.info("Epoch[%d] Time cost=%.3f", epoch, time.monotonic() - began)
            self._saver.after_epoch(epoch + 1)
            report(epoch, "Validation", self._validate(epoch))

    def _train_epoch(self, epoch: int) -> Dict[str, float]:
        """Trains an epoch; returns this rank's metrics."""
        self._model.train()
        self._sampler.set_epoch(epoch)
        done = 0
        if self._start.batch and epoch == self._start.epoch:
            # With other ranks or batches than in the saved training, the same part of the epoch is done.
            done = self._start.batch * self._batches // self._start.batches
        metrics = Metrics()
        last, last_at = done, time.monotonic()
        batches = itertools.islice(BatchSampler(self._sampler, self._options.batch_size, drop_last=True), done, None)
        for number, (images, labels) in enumerate(self._read(self._digits, batches), start=done + 1):
            for group in self._optimizer.param_groups:
                group["lr"] = self._rate(epoch * self._batches + number)
            self._optimizer.zero_grad(set_to_none=True)
            scores = self._model(images)
            loss = cross_entropy(scores, labels)
            loss.backward()
            self._optimizer.step()
            metrics.add(scores, labels, loss)
            if number % self._options.disp_batches == 0:
                now = time.monotonic()
                speed = (number - last) * self._options.batch_size / max(now - last_at, 1e-9)
                shown = "\t".join(f"{name}={value:f}" for name, value in metrics.compute().items())
                logger.info("Epoch[%d] Batch [%d]\tSpeed: %.2f samples/sec\t%s", epoch, number, speed, shown)
                last, last_at = number, now
            self._saver.after_batch(epoch, number)
        return metrics.compute()

    @torch.no_grad()
    def _validate(self, epoch: int) -> Dict[str, float]:
        """The metrics over all ranks' parts: every image is in exactly one."""
        self._network.eval()
        metrics = Metrics()
        own = range(self._ranks.rank, len(self._validation), self._ranks.count)
        for images, labels in self._read(
            self._validation, BatchSampler(own, self._options.batch_size, drop_last=False)
        ):
            scores = self._network(images)
            metrics.add(scores, labels, cross_entropy(scores, labels))
            self._saver.between_epochs(epoch + 1)
        return metrics.compute(self._ranks)

    def _read(self, digits: TensorDataset, indexes: Iterable[List[int]]) -> Batches:
        for batch in indexes:
            images, labels = digits[batch]
            yield images.to(self._ranks.device), labels.to(self._ranks.device)

    # -- checkpoints: only rank 0 reads and writes them

    def _find_start(self, checkpoints: Optional[Checkpoints]) -> Checkpoint:
        """Where training begins, the same on every rank; only rank 0 has the files of a checkpoint."""
        start = Checkpoint("", {}, 0)
        if not (self._options.resume or self._options.load_epoch):
            return start
        found = checkpoints.find() if checkpoints is not None else None
        start = Checkpoint(*self._ranks.share(found or start))
        if start.name:
            logger.info("Loaded %s", start.name)
            logger.info("Resumed from epoch %d batch %d", start.epoch, start.batch)
        else:
            logger.info("No complete checkpoint %s-*: training begins with epoch 0", self._options.model_prefix)
        return start if found is not None else start._replace(paths={})

    def _restore_momenta(self) -> None:
        """Gives every rank the saved state of SGD, or zeros if it was not saved."""
        path = self._start.paths.get("states")
        saved = load_tensors(path) if path is not None else {}
        for name, each in self._network.named_parameters():
            momentum = saved.get(name, torch.zeros(each.shape, dtype=each.dtype))
            if self._ranks.gradients is not None:
                dist.broadcast(momentum, src=0)
            self._optimizer.state[each]["momentum_buffer"] = momentum.to(self._ranks.device)

    def _content(self) -> Dict[str, Any]:
        """What a checkpoint contains: see Saver. The optimizer's settings come from the command line."""
        parameters = self._network.named_parameters()
        momenta = {name: self._optimizer.state[each].get("momentum_buffer") for name, each in parameters}
        contents = {
            "params": self._network.state_dict(),
            "states": {name: momentum for name, momentum in momenta.items() if momentum is not None},
        }
        return {"writers": {kind: functools.partial(torch.save, content) for kind, content in contents.items()}}


class Metrics:
    """Accuracy and loss over some batches. Sums stay on the device: reading one waits for the GPU."""

    def __init__(self) -> None:
        self._sums = torch.zeros(3)  # examples, correct predictions, losses

    def add(self, scores: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> None:
        """Adds a batch. loss: the mean over the batch."""
        count = torch.tensor(float(len(labels)), device=loss.device)
        right = (scores.argmax(1) == labels).sum()
        self._sums = self._sums.to(loss.device) + torch.stack([count, right, loss.detach() * count])

    def compute(self, ranks: Optional["Ranks"] = None) -> Dict[str, float]:
        """The means so far; over all ranks if they are given."""
        sums = self._sums.cpu()
        if ranks is not None and ranks.gradients is not None:
            dist.all_reduce(sums)
        count, right, loss = sums.tolist()
        return {"accuracy": right / count, "loss": loss / count}


def report(epoch: int, kind: str, metrics: Dict[str, float]) -> None:
    """Reports an epoch's metrics. kind: Train or Validation."""
    for name, value in metrics.items():
        logger.info("Epoch[%d] %s-%s=%f", epoch, kind, name, value)


def load_tensors(path: str) -> Dict[str, torch.Tensor]:
    """Reads a file that torch.save has written. weights_only: a file from S3 cannot run code here."""
    loaded: Dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return loaded


# -- networks: the same layers as those of the MXNet scripts -----------------------------------------------------------


class Normalize(nn.Module):
    """Scales pixels to about mean 0 and deviation 1. Part of the network, so that a saved model includes it."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Scales the pixels, which are bytes."""
        return (pixels.float() / 255 - MEAN) / DEVIATION


def build(network: str) -> nn.Module:
    """The network for images of (1, 28, 28) bytes."""
    if network == "mlp":
        return nn.Sequential(
            Normalize(), nn.Flatten(), nn.Linear(EDGE * EDGE, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(),
            nn.Linear(128, CLASSES),
        )  # fmt: skip
    return nn.Sequential(
        Normalize(), nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(50 * 4 * 4, 256), nn.ReLU(), nn.Linear(256, CLASSES),
    )  # fmt: skip


# -- data: bytes of shape (count, 1, 28, 28), and their labels ---------------------------------------------------------


def read_idx_pair(folder: str, kind: str) -> TensorDataset:
    """Reads two of MNIST's idx-ubyte files (http://yann.lecun.com/exdb/mnist). Raises ScriptError."""
    names = [f"{folder.rstrip('/')}/{kind}-{content}-ubyte" for content in ("images-idx3", "labels-idx1")]
    images, labels = map(read_idx, names)
    if images.shape[1:] != (EDGE, EDGE) or labels.shape != images.shape[:1]:
        raise ScriptError(f"{names[0]} has {tuple(images.shape)} pixels, {names[1]} {len(labels)} labels")
    return TensorDataset(images.unsqueeze(1), labels.long())


def read_idx(path: str) -> torch.Tensor:
    """The content of an idx file, after a header with the number of axes and their lengths."""
    with open(path, "rb") as file:
        content = bytearray(file.read())
    shape: Tuple[int, ...] = ()
    if content[:3] == b"\0\0\x08":  # 8: unsigned bytes
        shape = struct.unpack_from(f">{content[3]}I", content, 4)
    if len(content) != 4 + 4 * len(shape) + math.prod(shape):
        raise ScriptError(f"{path} is not a whole idx-ubyte file; if its name ends with .gz, unzip it")
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * len(shape)).reshape(shape)


# -- ranks -------------------------------------------------------------------------------------------------------------


class Ranks(NamedTuple):
    """This process's place among the job's processes.

    gradients: the group that averages gradients, NCCL's if every rank has a GPU; Gloo's, on the CPU, exchanges
    everything else. None: this process is the only one, without a process group.
    """

    rank: int
    count: int
    device: torch.device
    gradients: Any = None
    store: Any = None

    def share(self, value: Any) -> Any:
        """Returns rank 0's value on every rank. Not broadcast_object_list, which needs NumPy."""
        if self.store is None:
            return value
        if self.rank == 0:
            self.store.set("shared", json.dumps(value))
        return json.loads(self.store.get("shared"))


@contextlib.contextmanager
def join(backend: str, timeout_s: int) -> Iterator[Ranks]:
    """Joins the other ranks, and leaves the group at the end of the block.

    timeout_s: the time for all ranks to join. Raises ScriptError if the group does not form, or a rank has no GPU for
    nccl.
    """
    gpu = script.find_gpu(os.environ, torch.cuda.device_count())
    rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    store = open_store(timeout_s) if "RANK" in os.environ else None
    with_gpu = gpu is not None
    if store is not None:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
        total = torch.tensor([int(with_gpu)])
        dist.all_reduce(total)
        with_gpu = int(total) == count
    if backend == "nccl" and not with_gpu:
        raise ScriptError("--dist-backend nccl: not every rank has a GPU that PyTorch finds")
    device = torch.device("cuda", gpu) if with_gpu and gpu is not None else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if store is None:
        yield Ranks(0, 1, device)
        return
    by_nccl = device.type == "cuda" and backend != "gloo"
    yield Ranks(rank, count, device, dist.new_group(backend="nccl") if by_nccl else dist.group.WORLD, store)
    dist.barrier()  # rank 0 keeps the store until all have finished
    dist.destroy_process_group()


def open_store(timeout_s: int) -> Any:
    """The store at MASTER_ADDR, through which ranks find each other. Raises ScriptError unless all ranks join it."""
    timeout = timedelta(seconds=timeout_s)
    try:
        store, rank, count = next(rendezvous("env://", timeout=timeout))
        store.set(f"joined/{rank}", "")
        store.wait([f"joined/{number}" for number in range(count)], timeout)  # torchrun's own store waits for none
    except RuntimeError as error:
        raise ScriptError(f"the process group did not form: {str(error).partition(chr(10))[0]}") from error
    return store


if __name__ == "__main__":
    script.run_to_end(lambda: train(CHOSEN))
