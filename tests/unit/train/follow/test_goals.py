"""How many epochs there will be, and how far a rank is."""

import pytest

from job_events import line, worker
from train.follow.events import Event
from train.follow.goals import Goal, find_epochs, parse_epochs
from train.follow.progress import Progress


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
