"""How many epochs a job is to train, as its command line or its output says, and how far a rank is. Pure.

The command line: --num-epochs 10 of MXNet's examples, --epochs=90 of PyTorch's, --max_epochs 3, --num_train_epochs 3.
The output: "Epoch 3/10" of Keras, "Epoch [3/10], Step [100/600]" of PyTorch's tutorials. One that counts from 0 names
the last epoch, as Lightning does: "Epoch 0/9".
"""

import re
from collections.abc import Sequence

from msgspec import Struct

OPTION = re.compile(r"--(?:num[-_]|n[-_]|max[-_]|num[-_]train[-_])?epochs(?:=(.*))?", re.ASCII)
OF_PATTERN = re.compile(r"\bepoch:?\s*\[?\s*(\d{1,6})\s*(?:/|of)\s*(\d{1,6})\b(?!\s*\()", re.IGNORECASE | re.ASCII)
LONGEST = 2000  # characters of a line that are examined


class Goal(Struct, frozen=True):
    """share: what is done of all epochs, from 0 to 1. left_s: how long the rest takes; None without a whole epoch."""

    share: float
    left_s: float | None


def find_epochs(words: Sequence[str]) -> int | None:
    """The number of epochs in a command line, or in a line for a shell; the last one counts, as for argparse."""
    found, words = None, " ".join(words).split()
    for word, following in zip(words, [*words[1:], ""], strict=False):
        match = OPTION.fullmatch(word)
        value = (match[1] or following) if match is not None else ""
        if value.isascii() and value.isdecimal() and 0 < len(value) <= 6:
            found = int(value)
    return found or None


def parse_epochs(text: str) -> int | None:
    """The number of epochs in a line such as "Epoch 3/10"."""
    match = OF_PATTERN.search(text[:LONGEST])
    if match is None or int(match[1]) > int(match[2]):
        return None
    return int(match[2]) + (int(match[1]) == 0) or None


def describe_goal(epochs: int, epoch: int, *, first: int, epoch_s: float | None, elapsed_s: float) -> Goal:
    """How far a rank is.

    epoch: the number of the current one, first: that of the first one seen: the script counts from 0 or from 1.
    epoch_s: how long one takes. elapsed_s: since the start of the current one.
    """
    done = min(max(0, epoch - min(first, 1)), epochs)
    if not epoch_s:
        return Goal(done / epochs, None)
    done_with_part = min(done + min(elapsed_s / epoch_s, 1.0), epochs)
    return Goal(done_with_part / epochs, (epochs - done_with_part) * epoch_s)
