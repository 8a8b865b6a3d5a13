"""The training loop: one process, or one rank of several, with DistributedDataParallel."""

import argparse
import functools
import logging
import time
from typing import Dict, List, Optional, Sequence

import torch
from common import notice, reports, schedule
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ddp import data, models, networks
from ddp.ranks import Ranks, join

logger = logging.getLogger()
CLASSES = 10


def train(options: argparse.Namespace) -> None:
    """Trains as the options say.

    Raises ScriptError if the ranks cannot join each other, or data or a checkpoint cannot be used.
    """
    asked = notice.Notice()
    asked.listen()
    with join(options.dist_backend, options.dist_timeout) as ranks:
        reports.log_as(ranks.rank)
        logging.getLogger("torch").setLevel(logging.WARNING)
        torch.manual_seed(options.seed)
        start = models.find_start(options, ranks)
        for line in start.words.splitlines():
            logger.info(line)
        if start.epoch >= options.num_epochs:
            logger.info("Nothing to do: %d of %d epochs are done", start.epoch, options.num_epochs)
            return
        Training(options, ranks, start, asked).run()


class Training:
    """A network, its optimizer and its data, on one rank."""

    def __init__(self, options: argparse.Namespace, ranks: Ranks, start: models.Start, asked: notice.Notice) -> None:
        self._options = options
        self._start = start
        self._asked = asked
        self._ranks = ranks
        self._digits = data.load(options)
        parts = schedule.split_examples(len(self._digits.train), ranks.count)
        self._batches = schedule.batches_per_epoch(parts, options.batch_size)
        self._loader = data.TrainLoader(self._digits.train, options.batch_size, ranks, options.seed)
        self._network = networks.build(options.network, CLASSES).to(ranks.device)
        models.restore(start, self._network)
        self._model = self._network
        if ranks.gradients is not None:
            # Sends rank 0's weights to all ranks, and averages the gradients of all ranks in backward().
            self._model = DistributedDataParallel(self._network, process_group=ranks.gradients)
        self._optimizer = torch.optim.SGD(
            self._network.parameters(), lr=options.lr, momentum=options.mom, weight_decay=options.wd
        )
        if start.epoch or start.batch:
            self._order_gradients()
        models.restore_momenta(start, self._network, self._optimizer, ranks)
        self._rate = schedule.LearningRate(
            options.lr,
            options.lr_factor,
            [epoch * self._batches for epoch in options.lr_step_epochs],
            options.warmup_epochs * self._batches,
            options.warmup_strategy,
        )
        self._begin_batch = models.find_batch(start, self._position())
        self._metrics = Metrics()
        self._saver = models.Saver(options, start) if options.model_prefix and ranks.rank == 0 else None
        save = functools.partial(self._save, self._saver) if self._saver is not None else None
        self._checkpointer = notice.Checkpointer(asked, save, options.checkpoint_batches or 0, in_step=True)
        self._speedometer = reports.Speedometer(options.batch_size, options.disp_batches)
        logger.info(
            "Rank %d of %d on %s, %d batches of %d per epoch, PyTorch %s", ranks.rank, ranks.count, ranks.device,
            self._batches, options.batch_size, torch.__version__,
        )  # fmt: skip

    def run(self) -> None:
        """Trains from the start position to the last epoch."""
        for epoch in range(self._start.epoch, self._options.num_epochs):
            began = time.monotonic()
            metrics = self._train_epoch(epoch)
            reports.report_epoch(epoch, "Train", metrics, time.monotonic() - began)
            done = epoch + 1
            is_last = done == self._options.num_epochs
            if self._saver is not None and (done % self._options.save_period == 0 or is_last):
                self._save(self._saver, done, 0)
            self._checkpointer.after_batch(done, 0)
            if self._digits.val is not None:
                reports.report_epoch(epoch, "Validation", self._validate(self._digits.val, done))

    def _order_gradients(self) -> None:
        """Has DistributedDataParallel group the gradients as it does after its first batch.

        With three or more ranks, a sum depends on these groups: without this, the first batch would differ.
        """
        self._model(torch.zeros(1, 1, 28, 28, dtype=torch.uint8, device=self._ranks.device)).sum().backward()
        self._optimizer.zero_grad(set_to_none=True)

    def _position(self) -> Dict[str, int]:
        """The values that determine the order of the images, for the manifest."""
        return {
            "batches": self._batches, "batch_size": self._options.batch_size, "workers": self._ranks.count,
            "seed": self._options.seed,
        }  # fmt: skip

    def _save(self, saver: models.Saver, epoch: int, batch: int) -> str:
        facts = {"position": self._position(), "metrics": self._metrics.sums() if batch else []}
        return saver.save(epoch, batch, self._network, self._optimizer, facts)

    def _train_epoch(self, epoch: int) -> Dict[str, float]:
        """Trains an epoch; returns this rank's metrics."""
        self._model.train()
        begin = self._begin_batch if epoch == self._start.epoch else 0
        sums = (self._start.facts or {}).get("metrics") if begin and self._ranks.rank == 0 else None
        metrics = self._metrics = Metrics(sums or ())
        self._speedometer.begin_epoch(begin)
        batches = self._on_device(self._loader.epoch(epoch, begin))
        for number, (images, labels) in enumerate(batches, start=begin + 1):
            for group in self._optimizer.param_groups:
                group["lr"] = self._rate(epoch * self._batches + number)
            self._optimizer.zero_grad(set_to_none=True)
            scores = self._model(images)
            loss = cross_entropy(scores, labels)
            loss.backward()
            self._optimizer.step()
            metrics.add(scores, labels, loss)
            if self._speedometer.is_due(number):
                self._speedometer.report(epoch, number, metrics.compute())
            self._asked.note_progress(epoch, number, self._batches)
            if number < self._batches:
                self._checkpointer.after_batch(epoch, number)
        return metrics.compute()

    @torch.no_grad()
    def _validate(self, images: torch.utils.data.TensorDataset, done: int) -> Dict[str, float]:
        """The metrics over all ranks' parts."""
        self._network.eval()
        metrics = Metrics()
        batches = data.val_batches(images, self._options.batch_size, self._ranks)
        for pixels, labels in self._on_device(batches):
            scores = self._network(pixels)
            metrics.add(scores, labels, cross_entropy(scores, labels))
            self._checkpointer.after_batch(done, 0)
        return metrics.compute(self._ranks)

    def _on_device(self, batches: data.Batches) -> data.Batches:
        for images, labels in batches:
            yield images.to(self._ranks.device), labels.to(self._ranks.device)


class Metrics:
    """Accuracy and loss over some batches. Sums stay on the device: reading one waits for the GPU."""

    def __init__(self, sums: Sequence[float] = ()) -> None:
        """sums: those of earlier batches."""
        count, right, loss = sums or (0, 0, 0)
        self._count = int(count)
        self._right: torch.Tensor = torch.tensor(float(right))
        self._loss: torch.Tensor = torch.tensor(float(loss))

    def sums(self) -> List[float]:
        """The number of examples, the number of correct predictions, and the sum of the losses."""
        return [float(self._count), float(self._right), float(self._loss)]

    def add(self, scores: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> None:
        """Adds a batch. loss: the mean over the batch."""
        self._count += len(labels)
        self._right = self._right.to(labels.device) + (scores.argmax(1) == labels).sum()
        self._loss = self._loss.to(labels.device) + loss.detach() * len(labels)

    def compute(self, ranks: Optional[Ranks] = None) -> Dict[str, float]:
        """The means so far; over all ranks if they are given."""
        sums = self.sums()
        count, right, loss = ranks.sum(sums) if ranks is not None else sums
        return {"accuracy": right / count, "loss": loss / count}
