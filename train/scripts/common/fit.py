"""Training by MXNet's Module API, alone or as one of several workers."""

import argparse
import functools
import logging
import os
import random
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import mxnet as mx
import numpy as np

from common import schedule
from common.data import EpochIter, Part, Source, count_examples, open_epochs
from common.errors import ScriptError
from common.options import has_momentum

logger = logging.getLogger()
NEVER = sys.maxsize  # updates


class Workers(NamedTuple):
    """This worker among the others; `store` is the kv-store, or its kind where there are no others."""

    store: Union[str, mx.kv.KVStore]
    part: Part
    in_step: bool  # dist_sync: every step waits for every worker


def train(options: argparse.Namespace, network: mx.sym.Symbol, source: Source) -> None:
    """Train `network` on `source` as the options say, and report as MXNet's own tools expect it.

    Raises ScriptError where the data does not fit the batches, or a GPU or a saved model is missing.
    """
    contexts = _contexts(options.gpus)
    _seed(options.seed)
    workers = _join(options)
    _log_as(workers.part.index)
    batches = _batches_per_epoch(options, source, workers)
    data = open_epochs(source, workers.part, options.batch_size, batches)
    if options.test_io:
        _measure_reading(data, options)
        return
    saved = _load(options)
    module = mx.mod.Module(
        network if saved is None else saved[0],
        context=contexts,
        compression_params=_compression(options),
    )
    module.fit(
        data,
        num_epoch=options.num_epochs,
        begin_epoch=options.load_epoch or 0,
        eval_metric=_metrics(options.top_k),
        kvstore=workers.store,
        optimizer=options.optimizer,
        optimizer_params=_optimizer_params(options, batches, workers),
        initializer=mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2),
        arg_params=saved and saved[1],
        aux_params=saved and saved[2],
        batch_end_callback=mx.callback.Speedometer(options.batch_size, options.disp_batches),
        epoch_end_callback=_after_epoch(options, module, source, workers),
        monitor=mx.mon.Monitor(options.monitor, pattern=".*") if options.monitor else None,
    )


def _contexts(gpus: List[int]) -> List[mx.Context]:
    """Where to compute. Raises ScriptError where a GPU that was asked for is not there."""
    if not gpus:
        return [mx.cpu()]
    present = mx.context.num_gpus()
    missing = [number for number in gpus if number >= present]
    if missing:
        raise ScriptError(
            f"--gpus {','.join(map(str, gpus))}: MXNet {mx.__version__} finds {present or 'no'} GPUs here; "
            "leave --gpus out to train on the CPU"
        )
    return [mx.gpu(number) for number in gpus]


def _seed(seed: int) -> None:
    """The same on every worker; the kv-store gives all of them rank 0's first weights in any case."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - MXNet draws from numpy's global generator
    mx.random.seed(seed)


def _join(options: argparse.Namespace) -> Workers:
    """Join the other workers, which waits until all are there."""
    if not options.kv_store.startswith("dist"):
        return Workers(options.kv_store, Part(0, 1), in_step=False)
    store = mx.kv.create(options.kv_store)
    if options.gc_type != "none":
        # MXNet 1.7's Module calls pushpull, which refuses compressed gradients; its two halves take them.
        store.pushpull = functools.partial(_push_and_pull, store)
    return Workers(store, Part(store.rank, store.num_workers), in_step="async" not in options.kv_store)


def _push_and_pull(store: mx.kv.KVStore, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
    store.push(key, value, priority)
    store.pull(key, out=value if out is None else out, priority=priority)


def _log_as(rank: int) -> None:
    """MXNet's reports on standard output, in the form its tools/parse_log.py reads."""
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format=f"%(asctime)s Node[{rank}] %(message)s",
        datefmt="%H:%M:%S",
    )  # fmt: skip


def _batches_per_epoch(options: argparse.Namespace, source: Source, workers: Workers) -> int:
    part = workers.part
    if options.num_examples:
        counts = schedule.split_examples(options.num_examples, part.count)
    elif workers.in_step:
        counts = _exchange_counts(workers, count_examples(source, part))
    else:
        counts = [count_examples(source, part)]
    batches = schedule.batches_per_epoch(counts, options.batch_size)
    logger.info(
        "%d of %d workers, %d batches of %d per epoch",
        part.index + 1,
        part.count,
        batches,
        options.batch_size,
    )
    return batches


def _exchange_counts(workers: Workers, examples: int) -> List[int]:
    """Every worker's number of examples, by rank; the servers add up what is pushed, like gradients."""
    counts = mx.nd.zeros((workers.part.count,))
    workers.store.init("examples", counts)
    counts[workers.part.index] = examples
    workers.store.push("examples", counts)
    workers.store.pull("examples", out=counts)
    return [int(count) for count in counts.asnumpy()]


def _optimizer_params(options: argparse.Namespace, batches: int, workers: Workers) -> Dict[str, Any]:
    """The optimizer's settings, the division of gradients by the batch aside.

    Module does that: by the batch size, and with dist_sync, where the servers add up the workers' gradients,
    by the number of workers too. With dist_async each worker's gradients are an update of their own.
    """
    updates = batches if workers.in_step else batches * workers.part.count
    begin = options.load_epoch or 0
    rate, steps = schedule.learning_rate(options.lr, options.lr_factor, options.lr_step_epochs, begin, updates)
    warmup = max(0, options.warmup_epochs - begin) * updates
    params: Dict[str, Any] = {"learning_rate": rate, "wd": options.wd}
    if has_momentum(options.optimizer):
        params["momentum"] = options.mom
    if steps or warmup:
        params["lr_scheduler"] = mx.lr_scheduler.MultiFactorScheduler(
            steps or [NEVER], options.lr_factor, base_lr=rate, warmup_steps=warmup, warmup_begin_lr=rate / 10
        )
    return params


def _compression(options: argparse.Namespace) -> Optional[Dict[str, Any]]:
    if options.gc_type == "none":
        return None
    return {"type": options.gc_type, "threshold": options.gc_threshold}


def _metrics(top_k: int) -> mx.metric.CompositeEvalMetric:
    metrics = mx.metric.CompositeEvalMetric()
    metrics.add(mx.metric.Accuracy())
    if top_k > 1:
        metrics.add(mx.metric.TopKAccuracy(top_k=top_k))
    return metrics


Saved = Tuple[mx.sym.Symbol, Dict[str, mx.nd.NDArray], Dict[str, mx.nd.NDArray]]


def _load(options: argparse.Namespace) -> Optional[Saved]:
    if not options.load_epoch:
        return None
    name = f"{options.model_prefix}-{options.load_epoch:04d}.params"
    try:
        saved = mx.model.load_checkpoint(options.model_prefix, options.load_epoch)
    except mx.base.MXNetError as error:
        if "allow_null" not in str(error):  # the check that fails where there is no such file, local or on S3
            raise
        raise ScriptError(
            f"no saved model {name}; with several nodes it must be where each of them can read it, as on s3://"
        ) from error
    logger.info("Loaded %s", name)
    return saved


def _after_epoch(options: argparse.Namespace, module: mx.mod.Module, source: Source, workers: Workers) -> Any:
    """What module.fit calls after each epoch: rank 0 saves the model, everyone validates it."""
    saves = options.model_prefix and workers.part.index == 0
    if saves and "://" not in options.model_prefix:
        _make_folder(os.path.dirname(os.path.abspath(options.model_prefix)))
    metrics = _metrics(options.top_k)

    def after_epoch(epoch: int, symbol: mx.sym.Symbol, arg_params: Any, aux_params: Any) -> None:
        if saves:
            mx.model.save_checkpoint(options.model_prefix, epoch + 1, symbol, arg_params, aux_params)
        if source.open_val is not None:
            _validate(module, source.open_val(options.batch_size), metrics)
            for name, value in metrics.get_name_value():
                logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)

    return after_epoch


def _make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise ScriptError(f"--model-prefix: the folder {path} cannot be made: {error.strerror}") from error


def _validate(module: mx.mod.Module, batches: Any, metrics: mx.metric.EvalMetric) -> None:
    """Every example counts once; Module.score would count those that only fill the last batch too."""
    metrics.reset()
    for batch in batches:
        module.forward(batch, is_train=False)
        real = batch.data[0].shape[0] - (batch.pad or 0)
        outputs = [output[:real] for output in module.get_outputs()]
        metrics.update([label[:real] for label in batch.label], outputs)


def _measure_reading(data: EpochIter, options: argparse.Namespace) -> None:
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
