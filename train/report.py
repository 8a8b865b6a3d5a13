"""What training loops report of themselves in their output, line by line.

MXNet's Speedometer is understood in the forms of MXNet 0.9 to 1.9, and so are the loops of MXNet's Gluon examples,
of GluonCV and of gluon.contrib's estimator:

    Epoch[0] Batch [0-20]  Speed: 3280.25 samples/sec  accuracy=0.647321        MXNet 1.4 and later
    Epoch[0] Batch [20]  Speed: 3280.25 samples/sec  Train-accuracy=0.647321    before; Iter[0] without metrics
    Epoch[3] Train-accuracy=0.97    Epoch[3] Validation-accuracy=0.98    Epoch[3] Time cost=1.2
    [Epoch 3][Batch 99], LR: 2.8E-04, Speed: 28.997 samples/sec, ObjLoss=32.955
    [Epoch 3] speed: 1200 samples/sec  time cost: 12.3    [Epoch 3] validation: err-top1=0.3
    [Epoch 0][Batch 5][Samples 160] time/interval: 0.5s training accuracy: 0.9
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

FLAGS = re.IGNORECASE | re.ASCII
LONGEST = 2000  # characters of a line that are looked at

SPEED_PATTERN = re.compile(r"\bspeed:?\s*(\d[\d.]*(?:e[+-]?\d+)?|inf)\s*samples/s", FLAGS)
EPOCH_PATTERN = re.compile(r"\b(?:epoch|Iter\[)[:\s\[]*(\d+)(?=[\]\s,:/]|$)", FLAGS)
BATCH_PATTERN = re.compile(r"\bbatch[:\s]*\[?\s*(?:\d+-)?(\d+)", FLAGS)
COST_PATTERN = re.compile(r"\b(?:(?:time|training) cost[=:]|Finished in)\s*(\d[\d.]*)", FLAGS)
NUMBER = r"([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|inf|nan)\b)"
METRIC_PATTERN = re.compile(r"(?<![\w@.-])([A-Za-z_][\w@.-]*)=" + NUMBER, FLAGS)
ESTIMATOR_PATTERN = re.compile(r"\b(training|validation) ([a-z][\w -]*?): " + NUMBER, FLAGS)
NO_METRICS = frozenset({"lr", "cost", "throughput", "learning_rate"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What one line says. Metrics of the training set by their own names, others as "validation-NAME".

    epoch_s: how long a whole epoch took, in seconds.
    """

    epoch: int | None
    batch: int | None
    samples_per_s: float | None
    metrics: Mapping[str, float]
    epoch_s: float | None

    @property
    def is_passing(self) -> bool:
        """Whether it is about some batches only, so that a later one replaces it."""
        return self.batch is not None


def parse_report(text: str) -> Report | None:
    """What a line of a worker's output reports; None for any other line. Pure."""
    # Most lines are none, and there may be very many of them.
    if "poch" not in text and "samples/s" not in text:
        return None
    text = text[:LONGEST]
    epoch = _integer(EPOCH_PATTERN.search(text))
    speed_match = SPEED_PATTERN.search(text)
    metrics = _metrics(text)
    cost = COST_PATTERN.search(text)
    if speed_match is None and (epoch is None or not (metrics or cost)):
        return None
    return Report(
        epoch=epoch,
        batch=_integer(BATCH_PATTERN.search(text)),
        samples_per_s=_finite(speed_match[1]) if speed_match else None,
        metrics=metrics,
        epoch_s=_number(cost[1]) if cost else None,
    )


def _metrics(text: str) -> dict[str, float]:
    found = [(name, value) for name, value in METRIC_PATTERN.findall(text) if name.lower() not in NO_METRICS]
    validation = re.search(r"\bvalidation: ", text, FLAGS) is not None
    named = [(f"validation-{name}" if validation else name, value) for name, value in found]
    named += [
        (f"validation-{name}" if which.lower() == "validation" else name, value)
        for which, name, value in ESTIMATOR_PATTERN.findall(text)
        if name.lower() not in NO_METRICS
    ]
    metrics = {}
    for name, words in named:
        value = _number(words)
        if value is not None:
            metrics[_metric_name(name)] = value
    return metrics


def _metric_name(name: str) -> str:
    kind, dash, rest = name.partition("-")
    if dash and kind.lower() == "train":
        return rest
    return f"validation-{rest}" if dash and kind.lower() == "validation" else name


def _integer(match: re.Match[str] | None) -> int | None:
    return int(match[1][:12]) if match else None


def _finite(text: str) -> float | None:
    number = _number(text)
    return number if number is not None and math.isfinite(number) else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # such as 1.2.3
        return None
