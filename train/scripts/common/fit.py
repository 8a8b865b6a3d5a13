"""Training with MXNet's Module API, as the only worker or one of several."""

import argparse
import functools
import itertools
import logging
import os
import random
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np

from common import ScriptError, data, schedule, script
from common.checkpoints import Checkpoint, Checkpoints, Saver
from common.options import WITH_MOMENTUM

logger = logging.getLogger()
UPDATE_ON_SERVERS = "MXNET_UPDATE_ON_KVSTORE"  # MXNet's own: with "0", the workers update
_LOSSES = {"ce": mx.metric.CrossEntropy, "nll": mx.metric.NegativeLogLikelihood}


class Workers(NamedTuple):
    """The workers of a job. store: the kv-store, or its kind if this worker is the only one."""

    store: Union[str, mx.kv.KVStore]
    part: data.Part  # the rank, and the number of workers
    in_step: bool  # dist_sync: every step waits for all workers


def train(options: argparse.Namespace, network: mx.sym.Symbol) -> None:
    """Trains `network` as the options say, and reports in the form that MXNet's own tools expect.

    Raises ScriptError if the data does not fill a batch, or a GPU or a saved model is missing.
    """
    contexts = _contexts(options.gpus)
    random.seed(options.seed)
    np.random.seed(options.seed)  # noqa: NPY002 - MXNet draws from numpy's global generator
    mx.random.seed(options.seed)
    workers = _join(options)
    script.log_as(workers.part.index)
    checkpoints = _open_checkpoints(options) if options.model_prefix else None
    start = _find_start(options, workers, checkpoints)
    begin_epoch = 0 if start is None else start.epoch
    if begin_epoch >= options.num_epochs:
        logger.info("Nothing to do: %d of %d epochs are done", begin_epoch, options.num_epochs)
        return
    steps = schedule.steps_per_update(options.macrobatch_size, options.batch_size, workers.part.count)
    batches = schedule.whole_updates(_batches_per_epoch(options, workers), steps)
    logger.info(
        "%d of %d workers, %d batches of %d per epoch%s", workers.part.index + 1, workers.part.count, batches,
        options.batch_size, f", {steps} per update" if steps > 1 else "",
    )  # fmt: skip
    part = data.open_train(options, workers.part, options.batch_size, first_epoch=begin_epoch)
    # An epoch continues where the last one ended, and begins the data again at its end.
    batches_of_epoch = mx.io.ResizeIter(part, batches, reset_internal=False)
    if options.test_io:
        _measure_reading(batches_of_epoch, options)
        return
    skipped = 0
    if start is not None and start.batch:
        # With other workers or batches, the same part of the epoch is done.
        skipped = start.batch * batches // start.batches // steps * steps
        for _ in itertools.islice(batches_of_epoch, skipped):
            pass
    if checkpoints is not None and workers.in_step and _keeps_states(options):
        # The servers add up gradients and the workers update, so that the optimizer's state can be saved.
        os.environ.setdefault(UPDATE_ON_SERVERS, "0")
    compression = {"type": options.gc_type, "threshold": options.gc_threshold} if options.gc_type != "none" else None
    module = AddingModule(network, steps=steps, context=contexts, compression_params=compression)
    if start is not None and _keeps_states(options):
        module.begin_with_states(start.paths.get("states"))
    saver = Saver(
        options, checkpoints if workers.part.index == 0 else None, functools.partial(_content, options, module),
        batches=batches, steps=steps,
    )  # fmt: skip
    after = _After(options, module, saver, begin_epoch, skipped)
    weights, states = _load(start)
    module.fit(
        batches_of_epoch,
        num_epoch=options.num_epochs,
        begin_epoch=begin_epoch,
        eval_metric=_make_metrics(options),
        kvstore=workers.store,
        optimizer=options.optimizer,
        optimizer_params=_optimizer_params(
            options,
            workers,
            updates=batches // steps,
            begun=begin_epoch * (batches // steps) + skipped // steps,
            steps=steps,
        ),
        initializer=_initializer(options),
        arg_params=weights,
        aux_params=states,
        batch_end_callback=after.batch,
        epoch_end_callback=after.epoch,
        monitor=mx.mon.Monitor(options.monitor, pattern=".*") if options.monitor else None,
    )


class AddingModule(mx.mod.Module):
    """MXNet's Module; adds up the gradients of several steps for an update. steps: per update."""

    def __init__(self, network: mx.sym.Symbol, *, steps: int, **options: Any) -> None:
        super().__init__(network, **options)
        self._steps = steps
        self._done = 0

    def begin_with_states(self, path: Optional[str]) -> None:
        """Uses an optimizer's saved state, as Module.load does."""
        self._preload_opt_states = path

    def bind(self, *positional: Any, **named: Any) -> None:
        """As in Module; with several steps per update, adds new gradients to the existing ones."""
        if self._steps > 1 and named.get("for_training", True):
            named["grad_req"] = "add"
        super().bind(*positional, **named)

    def update(self) -> None:
        """As in Module, but only after the last step of an update."""
        self._done += 1
        if self._done % self._steps:
            return
        super().update()
        if self._steps > 1:
            for executor in self._exec_group.execs:
                for gradient in executor.grad_dict.values():
                    if gradient is not None:
                        gradient[:] = 0


class _After:
    """What follows each batch and each epoch: reports, checkpoints, validation by every worker."""

    def __init__(
        self, options: argparse.Namespace, module: AddingModule, saver: Saver, begin_epoch: int, skipped: int
    ) -> None:
        self._options = options
        self._module = module
        self._saver = saver
        self._begin = (begin_epoch, skipped)
        self._speedometer = mx.callback.Speedometer(options.batch_size, options.disp_batches)
        self._reports = False
        self._validation = data.Validation(options)

    def batch(self, param: Any) -> None:
        """Called by module.fit after each batch."""
        epoch, skipped = self._begin
        number = param.nbatch + (skipped if param.epoch == epoch else 0)
        # From a multiple of --disp-batches on: the speed is computed over that many batches.
        self._reports = self._reports or number % self._options.disp_batches == 0
        if self._reports:
            self._speedometer(param._replace(nbatch=number))
        self._saver.after_batch(param.epoch, number + 1)

    def epoch(self, epoch: int, *_: Any) -> None:
        """Called by module.fit after each epoch."""
        self._saver.after_epoch(epoch + 1)
        batches = self._validation.batches()
        if batches is None:
            return
        metrics = _make_metrics(self._options)
        for batch in batches:
            # Module.score would also count the examples that fill up the last batch.
            self._module.forward(batch, is_train=False)
            real = batch.data[0].shape[0] - (batch.pad or 0)
            outputs = [output[:real] for output in self._module.get_outputs()]
            metrics.update([label[:real] for label in batch.label], outputs)
            self._saver.between_epochs(epoch + 1)
        for name, value in metrics.get_name_value():
            logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)


# -- the workers -------------------------------------------------------------------------------------------------------


def _contexts(gpus: List[int]) -> List[mx.Context]:
    """The devices to compute on. Raises ScriptError if a requested GPU does not exist."""
    present = mx.context.num_gpus() if gpus else 0
    if any(number >= present for number in gpus):
        raise ScriptError(
            f"--gpus {','.join(map(str, gpus))}: MXNet {mx.__version__} finds {present or 'no'} GPUs here; "
            "leave --gpus out to train on the CPU"
        )
    return [mx.gpu(number) for number in gpus] or [mx.cpu()]


def _join(options: argparse.Namespace) -> Workers:
    """Joins the other workers; waits until all have joined."""
    if not options.kv_store.startswith("dist"):
        return Workers(options.kv_store, data.Part(0, 1), in_step=False)
    store = mx.kv.create(options.kv_store)
    if options.gc_type != "none":
        # MXNet 1.7's Module calls pushpull, which rejects compressed gradients; push and pull accept them.
        store.pushpull = functools.partial(_push_and_pull, store)
    return Workers(store, data.Part(store.rank, store.num_workers), in_step="async" not in options.kv_store)


def _push_and_pull(store: mx.kv.KVStore, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
    store.push(key, value, priority)
    store.pull(key, out=value if out is None else out, priority=priority)


def _exchange(workers: Workers, name: str, numbers: Sequence[int]) -> List[List[int]]:
    """Every worker's numbers, by rank; only this worker's if they are not in step. name: unique to this exchange.

    The servers add up the pushed values, as they do gradients. numbers: below 2**24, so that float32 is exact.
    """
    if not workers.in_step:
        return [list(numbers)]
    table = mx.nd.zeros((workers.part.count, len(numbers)))
    workers.store.init(name, table)
    table[workers.part.index] = list(numbers)
    workers.store.push(name, table)
    workers.store.pull(name, out=table)
    return [[round(float(number)) for number in row] for row in table.asnumpy()]


def _batches_per_epoch(options: argparse.Namespace, workers: Workers) -> int:
    if options.num_examples:
        counts = schedule.split_examples(options.num_examples, workers.part.count)
    elif options.benchmark:
        return data.BENCHMARK_BATCHES
    else:
        own = data.count_examples(options, workers.part)
        counts = [count for (count,) in _exchange(workers, "examples", [own])]
    return schedule.batches_per_epoch(counts, options.batch_size)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def _open_checkpoints(options: argparse.Namespace) -> Checkpoints:
    names = ("network", "num_layers", "num_classes", "image_shape", "dtype")
    model = ", ".join(f"{name} {getattr(options, name)}" for name in names)
    return Checkpoints(options, f"MXNet, {model}", f"{options.optimizer} on {max(1, len(options.gpus))} devices")


def _keeps_states(options: argparse.Namespace) -> bool:
    """Whether the workers, not the servers, have the optimizer's state: servers do not give it to workers.

    With dist_async the servers must have it; with compressed gradients, workers that update wait forever (MXNet 1.7).
    """
    if not options.kv_store.startswith("dist"):
        return True
    wanted = os.environ.get(UPDATE_ON_SERVERS, "0") == "0"
    return wanted and options.kv_store != "dist_async" and options.gc_type == "none"


def _find_start(
    options: argparse.Namespace, workers: Workers, checkpoints: Optional[Checkpoints]
) -> Optional[Checkpoint]:
    """The checkpoint with which all workers begin. Raises ScriptError if they do not find the same one."""
    if checkpoints is None or not (options.resume or options.load_epoch):
        return None
    found = checkpoints.find()
    own = [0, 0, 0] if found is None else [found.epoch, found.batch, found.mark]
    theirs = _exchange(workers, "checkpoint", own)
    if any(other != theirs[0] for other in theirs) and options.only_job is None:
        raise ScriptError(
            f"the workers do not find the same checkpoint {options.model_prefix}-*; --model-prefix must be a place "
            "that all of them share, such as s3://bucket/model"
        )
    if found is None or any(other != theirs[0] for other in theirs):
        # `cluster train` counts the batches that are lost by this line, or by the one below.
        logger.info("No complete checkpoint %s-*: training begins with epoch 0", options.model_prefix)
        return None
    logger.info("Loaded %s", found.name)
    logger.info("Resumed from epoch %d batch %d", found.epoch, found.batch)
    if "states" not in found.paths or not _keeps_states(options):
        logger.info("The optimizer starts from scratch: its state is not in the checkpoint")
    return found


def _load(start: Optional[Checkpoint]) -> Tuple[Any, Any]:
    """The saved weights, and the auxiliary states of the network's layers."""
    if start is None:
        return None, None
    split: Tuple[Dict[str, mx.nd.NDArray], Dict[str, mx.nd.NDArray]] = ({}, {})
    for name, value in mx.nd.load(start.paths["params"]).items():
        kind, _, own_name = name.partition(":")
        split[kind == "aux"][own_name] = value
    return split


def _content(options: argparse.Namespace, module: AddingModule) -> Dict[str, Any]:
    """What a checkpoint contains: see Saver."""
    weights, states = module.get_params()
    arrays = {f"arg:{name}": value for name, value in weights.items()}
    arrays.update({f"aux:{name}": value for name, value in states.items()})
    writers: Dict[str, Callable[[str], None]] = {"params": lambda path: _write_arrays(path, arrays)}
    if _keeps_states(options):
        writers["states"] = module.save_optimizer_states
    return {"writers": writers, "symbol": module.symbol.tojson()}


def _write_arrays(path: str, arrays: Dict[str, mx.nd.NDArray]) -> None:
    """Writes arrays. Raises ScriptError if the disk is full, which MXNet does not notice while it closes the file."""
    try:
        mx.nd.save(path, arrays)
        complete = len(mx.nd.load(path)) == len(arrays)
    except mx.base.MXNetError:
        complete = False
    if not complete:
        raise ScriptError(f"{path} was not written completely: is the disk full?")


# -- Module.fit's settings ---------------------------------------------------------------------------------------------


def _optimizer_params(
    options: argparse.Namespace, workers: Workers, *, updates: int, begun: int, steps: int
) -> Dict[str, Any]:
    """The optimizer's settings. updates: per epoch. begun: those that the saved training has done. steps: per update.

    Gradients are divided by all examples of an update: with dist_sync, the servers add up the workers' gradients. With
    dist_async, each worker's gradients are an update, and the servers count all of them.
    """
    each = 1 if workers.in_step else workers.part.count
    params: Dict[str, Any] = {
        "learning_rate": options.lr,
        "lr_scheduler": schedule.learning_rate(options, updates * each),
        "begin_num_update": begun * each,
        "rescale_grad": 1 / (options.batch_size * steps * (workers.part.count if workers.in_step else 1)),
        "wd": options.wd,
    }
    if options.optimizer in WITH_MOMENTUM:
        params["momentum"] = options.mom
    if options.dtype == "float16":
        params["multi_precision"] = True
    return params


def _initializer(options: argparse.Namespace) -> mx.init.Initializer:
    usual = {"alexnet": "normal", "vgg": "xavier"}.get(options.network, "gaussian")
    name = usual if options.initializer == "default" else options.initializer
    makers: Dict[str, Callable[[], mx.init.Initializer]] = {
        "gaussian": lambda: mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2),
        "xavier": mx.init.Xavier,
        "msra": mx.init.MSRAPrelu,
        "orthogonal": mx.init.Orthogonal,
        "normal": mx.init.Normal,
        "uniform": mx.init.Uniform,
        "one": mx.init.One,
        "zero": mx.init.Zero,
    }
    return makers[name]()


def _make_metrics(options: argparse.Namespace) -> mx.metric.EvalMetric:
    """Accuracy, and the metrics of --top-k and --loss."""
    metrics = mx.metric.CompositeEvalMetric()
    metrics.add(mx.metric.Accuracy())
    if options.top_k > 1:
        metrics.add(mx.metric.TopKAccuracy(top_k=options.top_k))
    for loss in options.loss:
        metrics.add(_LOSSES[loss]())
    return metrics


def _measure_reading(batches: mx.io.DataIter, options: argparse.Namespace) -> None:
    """Reports per --disp-batches and per epoch, as training does, but only reads the data."""
    for epoch in range(options.num_epochs):
        begin = last = time.time()
        for number, batch in enumerate(batches, start=1):
            batch.data[0].wait_to_read()
            if number % options.disp_batches == 0:
                speed = options.disp_batches * options.batch_size / (time.time() - last)
                logger.info("Epoch[%d] Batch [%d]\tSpeed: %.2f samples/sec", epoch, number, speed)
                last = time.time()
        examples = batches.size * options.batch_size
        logger.info("Epoch[%d] Read %d samples, %.2f samples/sec", epoch, examples, examples / (time.time() - begin))
        batches.reset()
