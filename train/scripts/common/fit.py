"""Training with MXNet's Module API, as the only worker or one of several."""

import argparse
import functools
import json
import logging
import os
import random
import time
from typing import Any, Callable, Dict, List, Optional

import mxnet as mx
import numpy as np

from common import ScriptError, models, notice, reports, schedule
from common.data import EpochIter, Source, count_examples, open_epochs
from common.options import has_momentum
from common.workers import Workers, exchange, join

logger = logging.getLogger()
_LOSSES = {"ce": mx.metric.CrossEntropy, "nll": mx.metric.NegativeLogLikelihood}
BENCHMARK_BATCHES = 500  # as in MXNet's own examples


def train(options: argparse.Namespace, network: mx.sym.Symbol, source: Source) -> None:
    """Trains `network` on `source` as the options say, and reports in the form that MXNet's own tools expect.

    Raises ScriptError if the data does not fill a batch, or a GPU or a saved model is missing.
    """
    contexts = _contexts(options.gpus)
    _seed(options.seed)
    asked = notice.Notice()
    asked.listen()
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
    run = Run(options, source, workers, data, start, steps=steps, batches=batches)
    if options.test_io:
        _measure_reading(data, options)
        return
    if options.model_prefix and workers.in_step and models.keeps_states(options):
        # The servers add up gradients and the workers update, so that the optimizer's state can be saved.
        os.environ.setdefault(models.UPDATE_ON_SERVERS, "0")
    compression = {"type": options.gc_type, "threshold": options.gc_threshold} if options.gc_type != "none" else None
    module = TrainedModule(network, contexts, steps, start, compression, seed_of=run.seed_of)
    after = _After(run, module, asked)
    begun = run.begin()
    module.fit(
        data,
        num_epoch=options.num_epochs,
        begin_epoch=start.epoch,
        eval_metric=after.metrics,
        kvstore=workers.store,
        optimizer=options.optimizer,
        optimizer_params=_optimizer_params(run, begun),
        initializer=_initializer(options),
        arg_params=start.arg_params,
        aux_params=start.aux_params,
        batch_end_callback=after.batch,
        epoch_end_callback=after.epoch,
        monitor=mx.mon.Monitor(options.monitor, pattern=".*") if options.monitor else None,
    )


class Run:
    """A training on one worker: its options, data and position. steps: per update. batches: per epoch."""

    def __init__(
        self, options: argparse.Namespace, source: Source, workers: Workers, data: EpochIter, start: models.Start,
        *, steps: int, batches: int,
    ) -> None:  # fmt: skip
        self.options = options
        self.source = source
        self.workers = workers
        self.data = data
        self.steps = steps
        self.batches = batches
        self.start = start
        self._first_batch = 0  # the finished batches of all epochs together
        self._begun = 0
        self._passes = [0] * workers.part.count

    def begin(self) -> int:
        """Moves the data to where the saved training was; returns the finished batches of the first epoch."""
        start = self.start
        if start.found is None:
            return 0
        then = models.find_position(start, self.position())
        if then is None:
            self._begun = models.find_batch(start, self.batches) // self.steps * self.steps
            logger.info("The saved training had other data, batches or workers: the data begins anew")
        else:
            self._begun = start.batch
            self._passes = then.passes
            began = time.time()
            self.data.move_to(start.epoch, start.batch, then.passes[self.workers.part.index])
            logger.info("Continues in the middle of the data, found in %.1f s", time.time() - began)
        self._first_batch = start.epoch * self.batches + self._begun
        return self._begun

    def seed_of(self, step: int) -> int:
        """The seed for the layers' random numbers in a step, counted from where this process began."""
        seed = self.options.seed + 1_000_003 * self.workers.part.index + 7919 * (self._first_batch + step)
        return int(seed % 2**31)

    def batch(self, epoch: int, number: int) -> int:
        """The finished batches of an epoch, after the one to which module.fit gives this number, from 0 up."""
        return number + 1 + (self._begun if epoch == self.start.epoch else 0)

    def position(self) -> models.Position:
        """This training's position, as the manifest stores it."""
        options = self.options
        data = ["benchmark"] if options.benchmark else [options.data_dir, options.data_train, options.data_train_idx]
        return models.Position(
            self.batches, self.workers.part.count, options.batch_size, options.seed, repr(data), self._passes
        )

    def learn_passes(self, epoch: int) -> None:
        """Exchanges the lengths of passes; a resumed training then finds its position without counting them."""
        if not all(self._passes):
            mine = self._passes[self.workers.part.index] or self.data.pass_batches
            self._passes[self.workers.part.index] = mine
            if self.workers.in_step and self.options.model_prefix and models.keeps_states(self.options):
                # Otherwise servers would update these numbers as they do weights.
                table = exchange(self.workers, f"passes-{epoch}", [mine])
                self._passes = [length for (length,) in table]


class TrainedModule(mx.mod.Module):
    """MXNet's Module; also adds up the gradients of several steps for an update, and starts from a saved state."""

    def __init__(
        self,
        network: mx.sym.Symbol,
        contexts: List[mx.Context],
        steps: int,
        start: Optional[models.Start],
        compression: Optional[Dict[str, Any]],
        *,
        seed_of: Callable[[int], int] = int,
    ) -> None:
        """steps: per update. start: with the optimizer's initial state. seed_of: the seed of each step, from 0 up."""
        super().__init__(network, context=contexts, compression_params=compression)
        self._steps = steps
        self._done = 0
        self._start = start
        self._seed_of = seed_of
        self._draws = any(layer.get("op") == "Dropout" for layer in json.loads(network.tojson())["nodes"])

    @property
    def optimizer(self) -> mx.optimizer.Optimizer:
        """The optimizer, once training has begun."""
        return self._optimizer

    def forward_backward(self, data_batch: mx.io.DataBatch) -> None:
        """As in Module; the layers' random numbers depend only on the number of the batch."""
        if self._draws:
            mx.random.seed(self._seed_of(self._done))
        super().forward_backward(data_batch)

    def bind(self, *positional: Any, **named: Any) -> None:
        """As in Module; with several steps per update, adds new gradients to the existing ones."""
        if self._steps > 1 and named.get("for_training", True):
            named["grad_req"] = "add"
        super().bind(*positional, **named)

    def init_optimizer(self, *positional: Any, **named: Any) -> None:
        """As in Module; loads the initial state."""
        super().init_optimizer(*positional, **named)
        start = self._start
        if start is None or start.states is None:
            return
        self.load_optimizer_states(start.states)
        schedule = start.found.manifest.get("m_schedule") if start.found is not None else None
        if schedule is not None:
            self._optimizer.m_schedule = schedule  # Nadam's, which MXNet does not save

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
    """Uses the same seed on every worker; the kv-store gives all of them rank 0's initial weights anyway."""
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


def _optimizer_params(run: Run, begin_batch: int) -> Dict[str, Any]:
    """The optimizer's settings. begin_batch: the finished batches of the first epoch.

    Gradients are divided by all examples of an update: with dist_sync, the servers add up the workers' gradients. With
    dist_async, each worker's gradients are an update, and the servers count all of them.
    """
    options, workers, steps = run.options, run.workers, run.steps
    by_batch = 1 if workers.in_step else workers.part.count
    per_epoch = run.batches // steps * by_batch
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
        "begin_num_update": run.start.epoch * per_epoch + begin_batch // steps * by_batch,
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


class _After:
    """Runs after each batch and each epoch: reports, checkpoints, validation. Only rank 0 saves; all ranks validate."""

    def __init__(self, run: Run, module: TrainedModule, asked: notice.Notice) -> None:
        options, rank = run.options, run.workers.part.index
        self._run = run
        self._asked = asked
        self._saver = models.Saver(options, module, run.start) if options.model_prefix and rank == 0 else None
        save = functools.partial(self._save, self._saver) if self._saver is not None else None
        in_step = run.workers.in_step
        self._checkpointer = notice.Checkpointer(asked, save, options.checkpoint_batches or 0, in_step=in_step)
        self._module = module
        self._speedometer = mx.callback.Speedometer(options.batch_size, options.disp_batches)
        self._reports = False
        self._validation = _make_metrics(options)
        self.metrics = _make_metrics(options)
        if run.start.found is not None and rank == 0 and run.start.batch:
            self.metrics.continue_from(run.start.found.manifest.get("metrics", []))

    def batch(self, param: Any) -> None:
        """Called by module.fit after each batch."""
        run = self._run
        done = run.batch(param.epoch, param.nbatch)
        # After a resume, not before a multiple of --disp-batches: the speed is computed over that many batches.
        self._reports = self._reports or (done - 1) % run.options.disp_batches == 0
        if self._reports:
            self._speedometer(param._replace(nbatch=done - 1))
        self._asked.note_progress(param.epoch, done, run.batches)
        if done < run.batches and done % run.steps == 0:
            self._checkpointer.after_batch(param.epoch, done)

    def epoch(self, epoch: int, *_: Any) -> None:
        """Called by module.fit after each epoch."""
        run, done = self._run, epoch + 1
        run.learn_passes(epoch)
        if self._saver is not None and (done % run.options.save_period == 0 or done == run.options.num_epochs):
            self._save(self._saver, done, 0)
        self._checkpointer.after_batch(done, 0)
        if run.source.open_val is None:
            return
        self._validation.reset()
        for batch in run.source.open_val(run.options.batch_size):
            _validate(self._module, batch, self._validation)
            self._checkpointer.after_batch(done, 0)
        for name, value in self._validation.get_name_value():
            logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)

    def _save(self, saver: models.Saver, epoch: int, batch: int) -> str:
        return saver.save(epoch, batch, self._run.position(), self.metrics.counts() if batch else [])


# -- reports, in the form that MXNet's own tools read ------------------------------------------------------------------


_COUNTS = ("sum_metric", "num_inst", "global_sum_metric", "global_num_inst")


class Metrics(mx.metric.CompositeEvalMetric):
    """MXNet's metrics of an epoch; they can continue from those of a saved training."""

    def __init__(self) -> None:
        self._saved: List[List[float]] = []
        super().__init__()

    def continue_from(self, counts: List[List[float]]) -> None:
        """Lets the next epoch begin with these counts, which `counts` has returned."""
        self._saved = counts

    def counts(self) -> List[List[float]]:
        """The counts of this epoch so far."""
        return [[float(getattr(metric, name)) for name in _COUNTS] for metric in self.metrics]

    def reset(self) -> None:
        """As in EvalMetric; module.fit calls it at the beginning of each epoch."""
        super().reset()
        saved, self._saved = self._saved, []
        if saved and len(saved) == len(self.metrics):
            for metric, counts in zip(self.metrics, saved):  # noqa: B905 - 3.6
                for name, value in zip(_COUNTS, counts):  # noqa: B905 - 3.6
                    setattr(metric, name, value)


def _make_metrics(options: argparse.Namespace) -> Metrics:
    """Accuracy, and the metrics of --top-k and --loss."""
    metrics = Metrics()
    metrics.add(mx.metric.Accuracy())
    if options.top_k > 1:
        metrics.add(mx.metric.TopKAccuracy(top_k=options.top_k))
    for loss in options.loss:
        metrics.add(_LOSSES[loss]())
    return metrics


def _validate(module: mx.mod.Module, batch: mx.io.DataBatch, metrics: mx.metric.EvalMetric) -> None:
    """Counts every example once; Module.score would also count the padding of the last batch."""
    module.forward(batch, is_train=False)
    real = batch.data[0].shape[0] - (batch.pad or 0)
    outputs = [output[:real] for output in module.get_outputs()]
    metrics.update([label[:real] for label in batch.label], outputs)


def _measure_reading(data: EpochIter, options: argparse.Namespace) -> None:
    """Reports per --disp-batches and per epoch, as training does, but only reads the data."""
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
