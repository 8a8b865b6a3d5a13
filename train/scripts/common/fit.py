"""Training with MXNet's Module API, as the only worker or one of several."""

import argparse
import logging
import os
import random
import time
from typing import Any, Callable, Dict, List, Optional

import mxnet as mx
import numpy as np

from common import ScriptError, models, reports, schedule
from common.checkpointing import Checkpointing, Save
from common.checkpoints import Position
from common.data import EpochIter, Source, count_examples, open_epochs
from common.options import has_momentum
from common.workers import Workers, exchange, join

logger = logging.getLogger()
_LOSSES = {"ce": mx.metric.CrossEntropy, "nll": mx.metric.NegativeLogLikelihood}
BENCHMARK_BATCHES = 500  # as in MXNet's own examples


def train(options: argparse.Namespace, network: mx.sym.Symbol, source: Source) -> None:
    """Train `network` on `source` as the options say, and report as MXNet's own tools expect it.

    Raises ScriptError if the data does not fill a batch, or a GPU or a saved model is missing.
    """
    contexts = _contexts(options.gpus)
    _seed(options.seed)
    workers = join(options)
    reports.log_as(workers.part.index)
    start = models.find_start(options, workers, network)
    if start.epoch >= options.num_epochs:
        logger.info("Nothing to do: %d of %d epochs are done", start.epoch, options.num_epochs)
        return
    steps = schedule.steps_per_update(options.macrobatch_size, options.batch_size, workers.part.count)
    batches = schedule.whole_updates(_batches_per_epoch(options, source, workers), steps)
    logger.info(
        "%d of %d workers, %d batches of %d per epoch%s", workers.part.index + 1, workers.part.count, batches,
        options.batch_size, f", {steps} per update" if steps > 1 else "",
    )  # fmt: skip
    data = open_epochs(source, workers.part, options.batch_size, batches)
    if options.test_io:
        _measure_reading(data, options)
        return
    begin = Position(start.epoch, start.find_batch(batches) // steps * steps, batches)
    if start.found is not None:
        data.skip(begin.batch, before=begin.epoch * batches if source.same_order else 0)
    if options.resume:
        reports.report_resumed(begin.epoch, begin.batch)
    if options.model_prefix and workers.in_step and models.keeps_states(options):
        # The servers add up gradients and the workers update, so that the optimizer's state can be saved.
        os.environ.setdefault(models.UPDATE_ON_SERVERS, "0")
    compression = {"type": options.gc_type, "threshold": options.gc_threshold} if options.gc_type != "none" else None
    module = TrainedModule(network, contexts, steps, start.states, compression)
    saver = models.Saver(options, module) if options.model_prefix and workers.part.index == 0 else None
    progress = Progress(options, begin, steps, _make_save(saver, module), is_first=workers.part.index == 0)
    module.fit(
        data,
        num_epoch=options.num_epochs,
        begin_epoch=start.epoch,
        eval_metric=_make_metrics(options),
        kvstore=workers.store,
        optimizer=options.optimizer,
        optimizer_params=_optimizer_params(options, steps, begin, workers),
        initializer=_initializer(options),
        arg_params=start.arg_params,
        aux_params=start.aux_params,
        batch_end_callback=progress.after_batch,
        epoch_end_callback=_after_epoch(options, module, source, saver),
        monitor=mx.mon.Monitor(options.monitor, pattern=".*") if options.monitor else None,
    )


class TrainedModule(mx.mod.Module):
    """MXNet's Module; also adds up the gradients of several steps for an update, and starts from a saved state."""

    def __init__(
        self,
        network: mx.sym.Symbol,
        contexts: List[mx.Context],
        steps: int,
        states: Optional[str],
        compression: Optional[Dict[str, Any]],
    ) -> None:
        """steps: per update; states: the file of the optimizer's initial state."""
        super().__init__(network, context=contexts, compression_params=compression)
        self._steps = steps
        self._done = 0
        self._states = states

    def bind(self, *positional: Any, **named: Any) -> None:
        """As in Module; with several steps per update, adds new gradients to the existing ones."""
        if self._steps > 1 and named.get("for_training", True):
            named["grad_req"] = "add"
        super().bind(*positional, **named)

    def init_optimizer(self, *positional: Any, **named: Any) -> None:
        """As in Module; loads the initial state."""
        super().init_optimizer(*positional, **named)
        if self._states is not None:
            self.load_optimizer_states(self._states)

    def update(self) -> None:
        """As in Module, after the last step of an update."""
        self._done += 1
        if self._done % self._steps:
            return
        super().update()
        if self._steps > 1:
            for executor in self._exec_group.execs:
                for gradient in executor.grad_dict.values():
                    if gradient is not None:
                        gradient[:] = 0


def _contexts(gpus: List[int]) -> List[mx.Context]:
    """The devices to compute on. Raises ScriptError if a requested GPU does not exist."""
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
    """Use the same seed on every worker; the kv-store gives all of them rank 0's initial weights anyway."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - MXNet draws from numpy's global generator
    mx.random.seed(seed)


def _batches_per_epoch(options: argparse.Namespace, source: Source, workers: Workers) -> int:
    part = workers.part
    if options.num_examples:
        counts = schedule.split_examples(options.num_examples, part.count)
    elif options.benchmark:
        return BENCHMARK_BATCHES
    else:
        counts = [count for (count,) in exchange(workers, "examples", [count_examples(source, part)])]
    return schedule.batches_per_epoch(counts, options.batch_size)


def _optimizer_params(options: argparse.Namespace, steps: int, begin: Position, workers: Workers) -> Dict[str, Any]:
    """The optimizer's settings. steps: per update. begin: the training's position.

    Gradients are divided by all examples of an update: with dist_sync, the servers add up the workers' gradients. With
    dist_async, each worker's gradients are an update, and the servers count all of them.
    """
    updates_per_step = (1 if workers.in_step else workers.part.count) / steps
    per_epoch = round(begin.batches * updates_per_step)
    examples = options.batch_size * steps * (workers.part.count if workers.in_step else 1)
    params: Dict[str, Any] = {
        "learning_rate": options.lr,
        "lr_scheduler": schedule.LearningRate(
            options.lr,
            options.lr_factor,
            [epoch * per_epoch for epoch in options.lr_step_epochs],
            options.warmup_epochs * per_epoch,
            options.warmup_strategy,
        ),
        "begin_num_update": begin.epoch * per_epoch + round(begin.batch * updates_per_step),
        "rescale_grad": 1 / examples,
        "wd": options.wd,
    }
    if has_momentum(options.optimizer):
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


class Progress:
    """What happens after each batch: reports, and on worker 0 checkpoints within an epoch.

    begin: the training's position; module.fit does not know of its finished batches.
    """

    def __init__(
        self, options: argparse.Namespace, begin: Position, steps: int, save: Optional[Save], *, is_first: bool
    ) -> None:
        """steps: per update. save: None if nothing is saved. is_first: this is worker 0."""
        self._begin = begin
        self._speedometer = mx.callback.Speedometer(options.batch_size, options.disp_batches)
        self._checkpointing = None
        if is_first:
            self._checkpointing = Checkpointing(options.checkpoint_batches, begin.batches, steps, save)

    def after_batch(self, param: Any) -> None:
        """The callback of module.fit; param: mxnet.model.BatchEndParam, which counts from 0. Raises ScriptError."""
        if param.epoch == self._begin.epoch:
            param = param._replace(nbatch=param.nbatch + self._begin.batch)
        self._speedometer(param)
        if self._checkpointing is not None:
            self._checkpointing.after_batch(param.epoch, param.nbatch + 1)


def _make_save(saver: Optional[models.Saver], module: mx.mod.Module) -> Optional[Save]:
    return None if saver is None else lambda position: saver.save(position, module.symbol, *module.get_params())


def _after_epoch(
    options: argparse.Namespace, module: mx.mod.Module, source: Source, saver: Optional[models.Saver]
) -> Any:
    """The callback for module.fit after each epoch: rank 0 saves the model, all workers validate it."""
    metrics = _make_metrics(options)

    def after_epoch(epoch: int, symbol: mx.sym.Symbol, arg_params: Any, aux_params: Any) -> None:
        done = epoch + 1
        if saver is not None and (done % options.save_period == 0 or done == options.num_epochs):
            saver.save(Position(done), symbol, arg_params, aux_params)
        if source.open_val is not None:
            _validate(module, source.open_val(options.batch_size), metrics)
            for name, value in metrics.get_name_value():
                logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)

    return after_epoch


# -- reports, in the form that MXNet's own tools read ------------------------------------------------------------------


def _make_metrics(options: argparse.Namespace) -> mx.metric.CompositeEvalMetric:
    """Accuracy, and the metrics of --top-k and --loss."""
    metrics = mx.metric.CompositeEvalMetric()
    metrics.add(mx.metric.Accuracy())
    if options.top_k > 1:
        metrics.add(mx.metric.TopKAccuracy(top_k=options.top_k))
    for loss in options.loss:
        metrics.add(_LOSSES[loss]())
    return metrics


def _validate(module: mx.mod.Module, batches: Any, metrics: mx.metric.EvalMetric) -> None:
    """Count every example once; Module.score would also count the padding of the last batch."""
    metrics.reset()
    for batch in batches:
        module.forward(batch, is_train=False)
        real = batch.data[0].shape[0] - (batch.pad or 0)
        outputs = [output[:real] for output in module.get_outputs()]
        metrics.update([label[:real] for label in batch.label], outputs)


def _measure_reading(data: EpochIter, options: argparse.Namespace) -> None:
    """Report per --disp-batches and per epoch, as training does, but only read the data."""
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
