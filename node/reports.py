"""The reports in the output of a training loop: epoch, batch, speed and metrics in a line, or in a progress bar.

Supported: the Speedometer of MXNet 0.9 to 1.9, the loops of MXNet's Gluon examples, GluonCV, gluon.contrib's estimator,
PyTorch's examples and tutorials, torchvision's references and Hugging Face's Trainer:

    Epoch[0] Batch [0-20]  Speed: 3280.25 samples/sec  accuracy=0.647321        MXNet 1.4 and later
    Epoch[0] Batch [20]  Speed: 3280.25 samples/sec  Train-accuracy=0.647321    before; Iter[0] without metrics
    Epoch[3] Train-accuracy=0.97    Epoch[3] Validation-accuracy=0.98    Epoch[3] Time cost=1.2
    [Epoch 3][Batch 99], LR: 2.8E-04, Speed: 28.997 samples/sec, ObjLoss=32.955
    [Epoch 3] speed: 1200 samples/sec  time cost: 12.3    [Epoch 3] validation: err-top1=0.3
    [Epoch 0][Batch 5][Samples 160] time/interval: 0.5s training accuracy: 0.9
    Train Epoch: 1 [640/60000 (1%)]  Loss: 1.234567    Test set: Average loss: 0.0543, Accuracy: 9812/10000 (98%)
    Epoch: [0][ 10/1252]  Time  0.345 ( 0.512)  Loss 6.9012e+00 (7.0e+00)  Acc@1   0.00 (  0.10)
    Epoch: [0]  [ 10/5005]  eta: 0:10:00  lr: 0.1  img/s: 250.1  loss: 6.9 (7.0)  acc1: 0.0 (0.1)
    | epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 12.30 | loss  7.62 | ppl  2042.33
    Epoch [1/10], Step [100/600], Loss: 0.2345    {'loss': 0.6, 'learning_rate': 5e-05, 'epoch': 0.5}
    iter 10: loss 4.2, time 300.12ms, mfu 1.00%    step 250: train loss 2.5, val loss 2.6    step 10 loss 0.5

Also the progress bars of tqdm, as Lightning and Hugging Face use it, of rich, and of Keras:

    Epoch 0:  40%|████      | 40/100 [00:04<00:06,  9.93it/s, v_num=0, train_loss=1.230]
     10/100 ━━━━━━━━━━━━━━━━━━━━ 3s 12ms/step - accuracy: 0.5000 - loss: 1.2000

Pure.
"""

import math
import re
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

FLAGS = re.IGNORECASE | re.ASCII
LONGEST = 2000  # characters of a line that are examined
WORDS = ("poch", "samples/s", "oss", "%|", "━", "/step", "it [")
"""A line without any of them has no report."""
SPEED_PATTERN = re.compile(
    r"(?<![\w.,/+-])(\d[\d.]*(?:e[+-]?\d+)?|inf)\s*(?:img|image|sample)s?/s(?!\w*\s*[:=])"
    r"|\b(?:img|images|samples)/s(?:ec)?[:=]\s*(\d[\d.]*)",
    FLAGS,
)
EPOCH_PATTERN = re.compile(r"\b(?:epoch|Iter\[)[=:\s\['\"]*(\d+)(?=[\]\s,:/}.'\"]|$)", FLAGS)
BATCH_PATTERN = re.compile(
    r"(?<![\w(/])(?:(?:(?:global[_ ])?step|batch)[=:#\s]*\[?|iter(?:ation)?)\s*(?:\d+-)?(\d{1,3}(?:,\d{3})+|\d+)"
    r"(?!\d|[.,]\d)|\bepoch:? \[\d+\]\s*\[\s*(\d+)/|\b(\d+)/ *\d+ batches\b",
    FLAGS,
)
EPOCH_LINE = re.compile(r"\s*Epoch \d+/\d+\s*")
COLOURS = re.compile(r"\x1b\[[0-9;:]{0,40}m")
TQDM_PATTERN = re.compile(
    r"(?P<name>[^|]{0,200}?):?\s*(?:\d{1,3}%\|[^|]{0,300}\|\s*(?P<done>\d+)/\d+|\b(?P<seen>\d+)it) \[", FLAGS
)
# rich's, as Lightning uses it, and Keras' old and new one.
BAR_PATTERN = re.compile(r"(?P<name>[^━]{0,200}?)[━╸╺]+\s*(?P<done>\d+)/\d+ ", FLAGS)
KERAS_PATTERN = re.compile(r"(?P<name>)\s*(?P<done>\d+)/(?:\d+|Unknown) (?:━|\[[=>.]{5})", FLAGS)
KERAS_METRIC = re.compile(r" - ([A-Za-z_][\w@]*): ([-+]?\d[\d.]*(?:e[-+]?\d+)?|nan)\b", FLAGS)
TRAINING_NAME = re.compile(r"epoch|train|step|iter|batch", FLAGS)
BAR_SPEED = re.compile(r"(\d[\d.]*) ?(?:imgs?|images?|samples?|ex|examples)/s\b", FLAGS)
SAMPLES_PATTERN = re.compile(r"\bepoch: \d+ \[(\d+)/\d+ \(", FLAGS)
COST_PATTERN = re.compile(r"\b(?:(?:time|training) cost[=:]|Finished in)\s*(\d[\d.]*)", FLAGS)
NUMBER = r"([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|inf|nan)\b)"
METRIC_PATTERN = re.compile(r"(?<![\w@./-])([A-Za-z_][\w@./-]*)=" + NUMBER, FLAGS)
ESTIMATOR_PATTERN = re.compile(r"\b(training|validation) ([a-z][\w -]*?): " + NUMBER, FLAGS)
HELD_OUT = r"(?:test(?:ing)?|val(?:id(?:at(?:ion|ing))?)?|eval(?:uat(?:e|ion|ing))?)"
LOSS_PATTERN = re.compile(
    rf"(?<![\w@./=-])((?:(?:train|{HELD_OUT})/)?(?:[a-z]+[ _])?loss|[a-z]+/loss"
    rf"|(?:(?:train|{HELD_OUT})[ _/])?acc(?:uracy)?(?:@?\d)?)['\"]?"
    r"(?:\s*[:=]\s*['\"]?|\s+)" + NUMBER + r"(?:/(\d+)(?= ))?",
    FLAGS,
)
HELD_OUT_PATTERN = re.compile(rf"^\W*(?:\w+:)*{HELD_OUT}\b", FLAGS)
HELD_OUT_BAR = re.compile(rf"\b{HELD_OUT}\b", FLAGS)
HELD_OUT_NAME = re.compile(rf"{HELD_OUT}[_ /](?=.)", FLAGS)
NO_METRICS = frozenset(
    {"lr", "eta", "cost", "throughput", "learning_rate", "v_num", "step", "global_step", "iter", "batch", "epoch", "s"}
)


class Report(Struct, frozen=True, kw_only=True):
    """The report in one line. Metrics of the training set have their own names, others "validation-NAME".

    epoch_s: the duration of a whole epoch. samples: read by the worker in this epoch, if the line has no speed.
    is_bar: it is the state of a progress bar. counts_epochs: epoch is how many are done, as transformers prints 1.5,
    and as in a bar of epochs.
    """

    epoch: int | None
    batch: int | None
    samples_per_s: float | None
    metrics: Mapping[str, float]
    epoch_s: float | None
    samples: int | None = None
    is_bar: bool = False
    counts_epochs: bool = False

    @property
    def is_passing(self) -> bool:
        """Whether the report covers only some batches, so that a later report replaces it."""
        has_tested = any(name.startswith("validation-") for name in self.metrics)
        return not self.is_bar and not has_tested and (self.batch is not None or self.samples is not None)

    @property
    def is_of_epoch(self) -> bool:
        """Whether it covers more than some batches: if it is the first one of an epoch, that has ended."""
        covers_some = self.is_bar or self.batch is not None or self.samples is not None
        return not covers_some and (bool(self.metrics) or self.epoch_s is not None)


def parse_report(text: str) -> Report | None:
    """The report in a line of a worker's output; None for other lines. Pure."""
    # Most lines have no report, and there may be very many lines.
    if not any(word in text for word in WORDS) or "Namespace(" in text:  # argparse's, of a program's options
        return None
    text = COLOURS.sub("", text[:LONGEST])
    bar = TQDM_PATTERN.match(text) or BAR_PATTERN.match(text) or KERAS_PATTERN.match(text)
    if bar is not None:
        # What print writes while tqdm draws a bar follows the bar, which may be older, on the same line.
        printed = text[bar.end() :].partition("]")[2] if bar.re is TQDM_PATTERN else ""
        return parse_report(printed) or _parse_bar(text, bar)
    epoch_match = EPOCH_PATTERN.search(text)
    epoch = _integer(epoch_match)
    speed_match = SPEED_PATTERN.search(text)
    metrics = _metrics(text)
    cost = COST_PATTERN.search(text)
    is_held_out = HELD_OUT_PATTERN.search(text) is not None
    batch = _integer(BATCH_PATTERN.search(text))
    has_numbers = bool(metrics) and (epoch is not None or batch is not None or is_held_out)
    is_of_epoch = epoch is not None and (cost is not None or EPOCH_LINE.fullmatch(text) is not None)
    if speed_match is None and not has_numbers and not is_of_epoch:
        return None
    return Report(
        epoch=epoch,
        batch=batch,
        samples_per_s=_finite(speed_match[1] or speed_match[2]) if speed_match else None,
        metrics=metrics,
        epoch_s=_number(cost[1]) if cost else None,
        samples=_integer(SAMPLES_PATTERN.search(text)),
        counts_epochs=epoch_match is not None and re.match(r"\.\d", text[epoch_match.end() :]) is not None,
    )


def parse_bars(text: str) -> tuple[Report, ...]:
    """The reports in the rows of progress bars. Pure.

    The numbers of batches of several bars count only for those that are named after training, or that show metrics:
    another one may count epochs, or batches of an evaluation.
    """
    rows = text.split("\n")
    found = []
    for row in rows:
        report = parse_report(row)
        if report is not None:
            counts = len(rows) == 1 or report.metrics or TRAINING_NAME.search(row) is not None
            found.append(report if counts else replace(report, batch=None))
    return tuple(found)


def _parse_bar(text: str, bar: re.Match[str]) -> Report | None:
    """The report of a progress bar; None for a bar of something else, such as a download."""
    name, rest = bar["name"].strip(), text[bar.end() - 1 :]
    named = [*METRIC_PATTERN.findall(rest), *KERAS_METRIC.findall(rest)]
    which = "validation" if HELD_OUT_BAR.search(name) is not None else ""
    metrics = _name_metrics((which, title, words) for title, words in named) or _losses(rest, which)
    if name and not metrics and TRAINING_NAME.search(name) is None:
        return None
    done = int((bar["done"] or bar["seen"])[:12]) if "seen" in bar.re.groupindex else int(bar["done"][:12])
    counts_epochs = re.search(r"\bepochs?:?$", name, FLAGS) is not None
    speed = BAR_SPEED.search(rest)
    return Report(
        epoch=done if counts_epochs else _integer(EPOCH_PATTERN.search(text)),
        batch=None if counts_epochs or which else done,
        samples_per_s=_finite(speed[1]) if speed else None,
        metrics=metrics,
        epoch_s=None,
        is_bar=True,
        counts_epochs=counts_epochs,
    )


def _metrics(text: str) -> dict[str, float]:
    is_held_out = re.search(r"\bvalidation: ", text, FLAGS) is not None or HELD_OUT_PATTERN.search(text) is not None
    which = "validation" if is_held_out else ""
    named = [(which, name, words) for name, words in METRIC_PATTERN.findall(text)] + ESTIMATOR_PATTERN.findall(text)
    return _name_metrics(named) or _losses(text, which)


def _name_metrics(named: Iterable[tuple[str, str, str]]) -> dict[str, float]:
    """The metrics among numbers in a line, each as (kind, name, number)."""
    metrics = {}
    for which, name, words in named:
        value = _number(words)
        if value is not None and name.rpartition("/")[2].lower() not in NO_METRICS:
            metrics[_metric_name(which, name)] = value
    return metrics


def _losses(text: str, which: str) -> dict[str, float]:
    """The metrics of PyTorch's usual loops; "Accuracy: 9812/10000" becomes a share."""
    metrics = {}
    for name, words, whole in LOSS_PATTERN.findall(text):
        value = _number(words)
        if value is not None:
            plain = name.lower().removeprefix("average ")
            parts = int(whole[:12] or 0)
            metrics[_metric_name(which, plain)] = value / parts if parts else value
    return metrics


def _metric_name(which: str, name: str) -> str:
    held_out = HELD_OUT_NAME.match(name)
    if which.lower() == "validation" or held_out is not None:
        return f"validation-{name[held_out.end() :] if held_out is not None else name}"
    if name.lower().startswith(("train_", "train ", "train/")):
        return name[len("train_") :]
    kind, dash, rest = name.partition("-")
    if dash and kind.lower() == "train":
        return rest
    return f"validation-{rest}" if dash and kind.lower() == "validation" else name


def _integer(match: re.Match[str] | None) -> int | None:
    return int(next(group for group in match.groups() if group is not None).replace(",", "")[:12]) if match else None


def _finite(text: str) -> float | None:
    number = _number(text)
    return number if number is not None and math.isfinite(number) else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # such as 1.2.3
        return None
