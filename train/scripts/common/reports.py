"""What the scripts report, in the form that MXNet's own tools read."""

import argparse
import logging
import sys
import time
from typing import Any

import mxnet as mx

from common.data import EpochIter

logger = logging.getLogger()
_LOSSES = {"ce": mx.metric.CrossEntropy, "nll": mx.metric.NegativeLogLikelihood}


def log_as(rank: int) -> None:
    """MXNet's reports on standard output, in the form its tools/parse_log.py reads."""
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format=f"%(asctime)s Node[{rank}] %(message)s",
        datefmt="%H:%M:%S",
    )  # fmt: skip


def make_metrics(options: argparse.Namespace) -> mx.metric.CompositeEvalMetric:
    """Accuracy, and what --top-k and --loss ask for."""
    metrics = mx.metric.CompositeEvalMetric()
    metrics.add(mx.metric.Accuracy())
    if options.top_k > 1:
        metrics.add(mx.metric.TopKAccuracy(top_k=options.top_k))
    for loss in options.loss:
        metrics.add(_LOSSES[loss]())
    return metrics


def validate(module: mx.mod.Module, batches: Any, metrics: mx.metric.EvalMetric) -> None:
    """Every example counts once; Module.score would count those that only fill the last batch too."""
    metrics.reset()
    for batch in batches:
        module.forward(batch, is_train=False)
        real = batch.data[0].shape[0] - (batch.pad or 0)
        outputs = [output[:real] for output in module.get_outputs()]
        metrics.update([label[:real] for label in batch.label], outputs)


def measure_reading(data: EpochIter, options: argparse.Namespace) -> None:
    """One report per --disp-batches, and one for each epoch, as training gives, without training."""
    for epoch in range(options.num_epochs):
        begin = last = time.time()
        number = 0
        for number, batch in enumerate(data, start=1):
            batch.data[0].wait_to_read()
            if number % options.disp_batches == 0:
                now = time.time()
                speed = options.disp_batches * options.batch_size / (now - last)
                logger.info("Epoch[%d] Batch [%d]\tSpeed: %.2f samples/sec", epoch, number, speed)
                last = now
        logger.info(
            "Epoch[%d] Read %d samples, %.2f samples/sec", epoch, number * options.batch_size,
            number * options.batch_size / (time.time() - begin),
        )  # fmt: skip
        data.reset()
