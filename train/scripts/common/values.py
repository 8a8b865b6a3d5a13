"""The values of options: from the words of a command line to numbers, or to what is wrong with them."""

import argparse
from typing import Callable, List, Optional, Tuple


def at_least(low: int) -> Callable[[str], int]:
    """A whole number from `low` up."""

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} up")
        return value

    return whole_number


def positive(text: str) -> float:
    """A number above 0."""
    value = _number(text)
    if value is None or not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def not_negative(text: str) -> float:
    """A number from 0 up."""
    value = _number(text)
    if value is None or not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return value


def switch(text: str) -> bool:
    """0 or 1, as the field writes switches."""
    if text not in ("0", "1"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 nor 1")
    return text == "1"


def numbers(text: str) -> List[int]:
    """Whole numbers from 0 up with commas between them; none at all is a list too."""
    try:
        values = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = [-1]
    if any(value < 0 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers, as in 0,1")
    return values


def image_shape(text: str) -> Tuple[int, int, int]:
    """Channels, rows, columns."""
    try:
        channels, rows, columns = [int(part) for part in text.split(",")]
    except ValueError:
        channels = rows = columns = 0
    if channels not in (1, 3) or rows < 1 or columns < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an image's channels (1 or 3), rows and columns, as in 3,224,224"
        )
    return channels, rows, columns


def colours(text: str) -> Tuple[float, float, float]:
    """Three numbers: of red, green and blue."""
    parts = [_number(part) for part in text.split(",")]
    found = [part for part in parts if part is not None]
    if len(parts) != 3 or len(found) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not three numbers, as in 123.68,116.779,103.939")
    return found[0], found[1], found[2]


def losses(text: str) -> List[str]:
    """`ce` and `nll`, with commas between them, in the order given."""
    names = [part.strip().replace("nll_loss", "nll").replace("nll-loss", "nll") for part in text.split(",")]
    names = [name for name in names if name]
    if any(name not in ("ce", "nll") for name in names):
        raise argparse.ArgumentTypeError(f"{text!r}: the losses that can be shown are ce and nll")
    return names


def count_or_all(text: str) -> int:
    """How many to keep; 0 stands for all of them."""
    return 0 if text == "all" else at_least(1)(text)


def _number(text: str) -> Optional[float]:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if value != value else value  # noqa: PLR0124 - not a number
