"""Reports of training loops, line by line and combined."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foundation.durations import render_rounded
from job_events import bar, line, result, speed, state, worker
from node.reports import Report, parse_bars, parse_report
from train.follow.events import Event
from train.follow.goals import Goal, find_epochs, parse_epochs
from train.follow.progress import Progress, find_stragglers


def report(
    epoch: int | None,
    *,
    batch: int | None = None,
    speed: float | None = None,
    epoch_s: float | None = None,
    samples: int | None = None,
    counts_epochs: bool = False,
    **metrics: float,
) -> Report:
    named = {name.replace("_", "-"): value for name, value in metrics.items()}
    return Report(
        epoch=epoch, batch=batch, samples_per_s=speed, metrics=named, epoch_s=epoch_s, samples=samples,
        counts_epochs=counts_epochs,
    )  # fmt: skip


# A comment names the origin of a line if that is MXNet's own source or a log in an issue.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # mxnet/callback.py of 1.7, printed by a run of it
        (
            "INFO:root:Epoch[0] Batch [0-10]\tSpeed: 12120.08 samples/sec\taccuracy=0.500000\tcross-entropy=0.125000",
            report(0, batch=10, speed=12120.08, accuracy=0.5, cross_entropy=0.125),
        ),
        # apache/mxnet#4900, of 2017
        (
            "Epoch[0] Batch [9]  Speed: 14.5 samples/sec  Train-accuracy=0.9",
            report(0, batch=9, speed=14.5, accuracy=0.9),
        ),
        ("Epoch[5] Batch [0-20]\tSpeed: inf samples/sec\taccuracy=1.0", report(5, batch=20, accuracy=1.0)),
        # mxnet/module/base_module.py
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 1.234567", report(1, samples=640, loss=1.234567)),
        (
            "Test set: Average loss: 2.5, Accuracy: 9/10 (9%)",
            report(None, validation_loss=2.5, validation_accuracy=0.9),
        ),
        (
            "Epoch: [0][ 10/1252]\tTime  0.345 ( 0.512)\tLoss 6.9012e+00 (7.0e+00)\tAcc@1   0.00 (0.1)",
            Report(epoch=0, batch=10, samples_per_s=None, metrics={"loss": 6.9012, "acc@1": 0.0}, epoch_s=None),
        ),
        (
            "Epoch: [2]  [ 10/5005]  eta: 0:10:00  lr: 0.1  img/s: 250.1  loss: 6.9 (7.0)  acc1: 0.5 (0.1)  time: 0.5",
            report(2, batch=10, speed=250.1, loss=6.9, acc1=0.5),
        ),
        ("Epoch [1/10], Step [100/600], Loss: 0.2345", report(1, batch=100, loss=0.2345)),
        ("{'loss': 0.6, 'learning_rate': 5e-05, 'epoch': 2.5}", report(2, loss=0.6, counts_epochs=True)),
        ("Epoch 3 | train loss: 0.25", report(3, loss=0.25)),
        (f"Epoch 3 | loss: 8/{'4' * 400} ", report(3, loss=8 / 444444444444)),  # larger than a float
        # transformers 5
        (
            "{'loss': '1.385', 'grad_norm': '2.1', 'learning_rate': '4.9e-05', 'epoch': '1.5'}",
            report(1, loss=1.385, counts_epochs=True),
        ),
        ("{'eval_loss': '1.25', 'eval_runtime': '0.5', 'epoch': '2'}", report(2, validation_loss=1.25)),
        # nanoGPT
        ("iter 10: loss 4.2000, time 300.12ms, mfu 1.00%", report(None, batch=10, loss=4.2)),
        ("step 250: train loss 2.5000, val loss 2.6000", report(None, batch=250, loss=2.5, validation_loss=2.6)),
        ("[rank0]: global_step=10, loss = 0.5", report(None, batch=10, loss=0.5)),
        ("Epoch 3: time per batch 0.35, loss 0.5", report(3, loss=0.5)),
        ("Epoch 3 train/loss=0.5 val/loss=0.25 img/s=90.5", report(3, speed=90.5, loss=0.5, validation_loss=0.25)),
        ("Epoch 3 | train/loss 0.5 | val/acc 0.25", report(3, loss=0.5, validation_acc=0.25)),
        ("step 12,000/20,000 | loss 0.5", report(None, batch=12000, loss=0.5)),
        (
            "{'eval_loss': 1.25, 'eval_accuracy': 0.5, 'epoch': 2.0}",
            report(2, validation_loss=1.25, validation_accuracy=0.5, counts_epochs=True),
        ),
        # PyTorch's word_language_model
        ("| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 12.30 | loss  7.62", report(1, batch=200, loss=7.62)),
        ("Epoch 1/5", report(1)),
        ("Epoch[3] Train-accuracy=0.970000", report(3, accuracy=0.97)),
        ("Epoch[3] Validation-accuracy=0.980000", report(3, validation_accuracy=0.98)),
        ("Epoch[3] Time cost=1.200", report(3, epoch_s=1.2)),
        # dmlc/gluon-cv#506 and #1595
        ("[Epoch 3][Batch 7], LR: 2E-04, Speed: 2.9 samples/sec, A=3e-1", report(3, batch=7, speed=2.9, A=0.3)),
        # GluonCV's train_imagenet.py
        ("epoch 2 loss 2.4 1164.5 samples/s", report(2, speed=1164.5, loss=2.4)),
        ("Epoch 2, loss: 2.5 (90.5 images/sec)", report(2, speed=90.5, loss=2.5)),
        ("[Epoch 7] speed: 1200 samples/sec\ttime cost: 12.300000", report(7, speed=1200.0, epoch_s=12.3)),
        ("[Epoch 7] validation: err-top1=0.3", report(7, validation_err_top1=0.3)),
        # mxnet/gluon/contrib/estimator/event_handler.py of 1.7
        ("[Epoch 0][Batch 5][Samples 160] time/interval: 0.5s training loss: 0.3", report(0, batch=5, loss=0.3)),
        ("[Epoch 0] Finished in 1.5s, validation accuracy: 0.9", report(0, epoch_s=1.5, validation_accuracy=0.9)),
        # GluonNLP's intent classification
        ("Epoch: 3, Batch: 5/9, speed: 12.5 samples/s, lr=0.1, loss=0.1", report(3, batch=5, speed=12.5, loss=0.1)),
    ],
)
def test_reports_are_read(text: str, expected: Report) -> None:
    assert parse_report(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "start with arguments load_epoch=3, num_epochs=20, loss='ce'",
        "Epoch[0] Resetting Data Iterator",
        "[Epoch 2] Begin, current learning rate: 0.1000",
        'Saved checkpoint to "mnist-0001.params" after epoch 1',
        "Namespace(batch=64, step=10, loss=0.5)",
        "Namespace(epoch=3, loss=0.5)",
        "step 1,00 | loss 0.5",
        "Downloading data: 40%|####      | 40/100 [00:04<00:06,  9.93MB/s]",
    ],
)
def test_other_lines_are_not_reports(text: str) -> None:
    assert parse_report(text) is None


@pytest.mark.parametrize(
    ("text", "epoch", "batch", "speed", "metrics"),
    [
        (" 10%|#         | 50/500 [00:10<01:30,  5.00it/s]", None, 50, None, {}),  # transformers
        ("100%|██████████| 500/500 [01:40<00:00,  5.00img/s, loss=0.5]", None, 500, 5.0, {"loss": 0.5}),
        ("Epochs:  33%|███▎      | 1/3 [00:10<00:20, 10.0s/it]", 1, None, None, {}),
        ("train: 40it [00:04,  9.93it/s, loss=nan]", None, 40, None, {"loss": math.nan}),
        ("Validation:  50%|##   | 4/8 [00:01<00:01,  4.0it/s, loss=0.5]", None, None, None, {"validation-loss": 0.5}),
        ("Epoch 2 [val]:  50%|##   | 4/8 [00:01<00:01,  4.0it/s, acc=0.5]", 2, None, None, {"validation-acc": 0.5}),
        # Lightning 2, with tqdm and with rich
        (
            "Epoch 3:  40%|████      | 40/100 [00:04<00:06,  9.93it/s, v_num=0, train_loss=1.230, val_loss=2.5]",
            *(3, 40, None, {"loss": 1.23, "validation-loss": 2.5}),
        ),
        (
            "Epoch 3/9  ━━━━━━━━╸━━━━━━━ 40/100 0:00:04 • 0:00:06 9.93it/s v_num: 0.000 train_loss: 1.230",
            *(3, 40, None, {"loss": 1.23}),
        ),
        # Keras 3 and 2
        (
            (
                "\x1b[1m 10/100\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━\x1b[0m \x1b[1m3s\x1b[0m "
                "12ms/step - accuracy: 0.5000 - loss: 1.2"
            ),
            *(None, 10, None, {"accuracy": 0.5, "loss": 1.2}),
        ),
        (
            " 10/100 [==>.......] - ETA: 1:03 - loss: 0.5000 - val_accuracy: 0.25",
            *(None, 10, None, {"loss": 0.5, "validation-accuracy": 0.25}),
        ),
    ],
)
def test_bars_are_reports(
    text: str, epoch: int | None, batch: int | None, speed: float | None, metrics: dict[str, float]
) -> None:
    found = parse_report(text)
    assert (found.epoch, found.batch, found.samples_per_s) == (epoch, batch, speed)
    assert found.metrics == pytest.approx(metrics, nan_ok=True)
    assert not found.is_passing  # the last state of a bar is printed


def test_of_several_bars_only_named_ones_count_batches() -> None:
    """The second bar of transformers is that of the evaluation; that of an outer loop may count epochs."""
    bars = " 10%|#   | 50/500 [00:10<01:30,  5.0it/s]\n 50%|##  | 4/8 [00:01<00:01,  4.0it/s]"
    assert [found.batch for found in parse_bars(bars)] == [None, None]
    bars = " 33%|#   | 1/3 [00:10<01:30,  5.0it/s]\nEpoch 1:  50%|##  | 4/8 [00:01<00:01,  4.0it/s, loss=0.5]"
    assert [(found.epoch, found.batch) for found in parse_bars(bars)] == [(None, None), (1, 4)]


def test_a_report_on_the_line_of_a_bar_counts() -> None:
    """What print writes while tqdm draws its bar, which has not been drawn since."""
    drawn = "epoch 1:   0%|          | 0/20 [00:00<?, ?it/s, loss=2.3375]"
    found = parse_report(f"{drawn}epoch 1 step 5 loss 1.3545")
    assert found == report(1, batch=5, loss=1.3545)
    assert parse_report(f"{drawn}saved last.pt") == parse_report(drawn)


@settings(max_examples=25)
@given(st.text("aE[]().:%=|/-+0\u0661e\t\x1b \udc80", max_size=200))
def test_any_line_can_be_parsed(text: str) -> None:
    parse_report(text)
    parse_report(f"Epoch[{text}] Batch [{text}]\tSpeed: {text} samples/sec\t{text}={text}")
    parse_report(f"Epoch[0] {text}=1.2.3")


def progress_of(*events: Event) -> Progress:
    progress = Progress()
    for event in events:
        progress.take(event)
    return progress


def test_samples_over_time_are_a_speed() -> None:
    """PyTorch's MNIST example reports no speed, only the number of samples so far, which begins at 0 in each epoch."""
    reports = ((100.0, 1, 0), (102.0, 1, 640), (103.0, 2, 0), (105.0, 2, 640))
    progress = progress_of(
        *(line(f"Train Epoch: {epoch} [{n}/60000 (1%)]\tLoss: 0.5", at=at) for at, epoch, n in reports)
    )
    assert progress.speed == pytest.approx(320.0)
    assert progress.epoch == 2


def test_progress_is_summed_over_the_ranks() -> None:
    progress = progress_of(
        state("starting"),
        state("running", at=110.0),
        line("Epoch[0] Batch [0-20]\tSpeed: 1000 samples/sec\taccuracy=0.75", 1, at=120.0),
        speed(0, 20, 3000.0, at=121.0),
        line("Epoch[1] Validation-accuracy=0.9", at=125.0),
    )
    assert [rank.process.rank for rank in progress.ranks] == [0, 1]
    assert progress.speed == 4000.0
    assert progress.epoch == 1
    assert progress.metrics == {"accuracy": 0.5, "cross-entropy": 0.125, "validation-accuracy": 0.9}
    assert progress.duration_s == 15.0
    progress.take(result(at=233.4))
    assert progress.state == "done"
    assert progress.duration_s == pytest.approx(123.4)


def test_a_bar_that_arrives_late_changes_no_number() -> None:
    events = (line("epoch 2 step 15 loss 0.02", at=105.0), bar("epoch 1: 0%| | 0/9 [00:00<?, loss=1.35]", at=104.9))
    (rank,) = progress_of(*events).ranks
    assert (rank.epoch, rank.batch, rank.metrics) == (2, 15, {"loss": 0.02})
    assert rank.bar == ("epoch 1: 0%| | 0/9 [00:00<?, loss=1.35]",)


def test_another_attempt_has_workers_of_its_own() -> None:
    ended = (state("ending", at=130.0), state("waiting", at=131.0), state("starting", at=190.0))
    progress = progress_of(state("running", at=110.0), speed(0, 20, 3000.0, at=120.0), *ended)
    assert progress.ranks == ()
    progress.take(state("running", at=195.0))
    assert progress.duration_s == 85.0


@pytest.mark.parametrize(
    ("speeds", "stragglers"),
    [
        ({}, set()),
        ({0: 1.0}, set()),
        ({0: 100.0, 1: 71.0}, set()),
        ({0: 100.0, 1: 69.0}, {1}),
        ({0: 100.0, 1: 100.0, 2: 81.0}, set()),
        ({0: 100.0, 1: 100.0, 2: 79.0}, {2}),
        ({0: 10.0, 1: 20.0, 2: 100.0, 3: 100.0, 4: 100.0}, {0, 1}),
    ],
)
def test_stragglers_are_clearly_slower_than_the_rest(speeds: dict[int, float], stragglers: set[int]) -> None:
    assert find_stragglers(speeds) == stragglers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.4, "59 s"), (59.9, "1 min 0 s"), (123, "2 min 3 s"), (3600, "1 h 0 min"), (90061, "25 h 1 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert render_rounded(seconds) == text


# --- how many epochs there will be, and how far a rank is


@pytest.mark.parametrize(
    ("words", "epochs"),
    [
        ("train_mnist.py --num-epochs 3", 3),
        ("run_glue.py --num_train_epochs 3", 3),
        ("train.py --n-epochs 2 --epochs 4", 4),
        ("train.py --epochs", None),
        ("train.py --epochs=99999999999", None),
        ("train.py --lr-step-epochs 10", None),
    ],
)
def test_epochs_of_a_command_line(words: str, epochs: int | None) -> None:
    assert find_epochs(words.split()) == epochs
    assert find_epochs(("", "bash", "-c", f"python {words}")) == epochs


@pytest.mark.parametrize(
    ("text", "epochs"),
    [
        ("Epoch 3/10", 10),
        ("Epoch [1/10], Step [100/600], Loss: 0.2345", 10),
        ("Epoch: 2 of 5, loss 0.1", 5),
        ("Epoch 0/24", 25),
        ("Epoch 3/2", None),
        ("Train Epoch: 1 [640/60000 (1%)]", None),
        ("Epoch[0] Batch [0-20]", None),
    ],
)
def test_epochs_of_a_line(text: str, epochs: int | None) -> None:
    assert parse_epochs(text) == epochs


def test_a_rank_measures_its_epochs() -> None:
    """From the first report of one to that of the next. What the command line says counts more than the output."""
    progress = Progress()

    def read(at: float, text: str) -> None:
        progress.take(line(text, at=at))

    read(100.0, "Epoch [1/4], Step [1/6], Loss: 0.5")
    (rank,) = progress.ranks
    assert rank.find_goal(None, now=105.0) == Goal(0.0, None)
    read(110.0, "Epoch [1/4], Step [5/6], Loss: 0.4")
    read(120.0, "Epoch [2/4], Step [1/6], Loss: 0.3")
    assert rank.find_goal(None, now=130.0) == Goal(0.375, 50.0)
    assert rank.find_goal(8, now=130.0) == Goal(0.1875, 130.0)
    assert rank.find_goal(None, now=900.0) == Goal(0.5, 40.0)  # an epoch that takes longer than those before
    progress.take(Event(kind="process", at=200.0, process=worker(0, exit_code=0)))
    assert rank.find_goal(None, now=210.0) == Goal(1.0, None)


@pytest.mark.parametrize(
    "texts",
    [
        ("Epoch 1/4, loss 0.5", "Epoch 2/4, loss 0.4"),
        ("Epoch[0] Time cost=10", "Epoch[1] Time cost=10"),
        ("{'loss': 0.5, 'epoch': 1.0}", "{'loss': 0.4, 'epoch': 2.0}"),
    ],
)
def test_a_report_at_the_end_of_an_epoch(texts: tuple[str, str]) -> None:
    progress = Progress(epochs=4)
    for at, text in zip((110.0, 120.0), texts, strict=True):
        progress.take(line(text, at=at))
    assert progress.ranks[0].find_goal(4, now=125.0) == Goal(0.625, 15.0)
