"""Decodes JSON, from another machine or from a file that may be damaged, into a given type.

Any input yields a value of that type or a one-line ValueError, never a KeyError or RecursionError. Infinite numbers and
NaN are rejected. Unknown keys are ignored.

Use these functions instead of msgspec's: msgspec resolves a Struct's types when it first decodes one. If another thread
decodes the same Struct meanwhile, the process crashes with SIGSEGV (msgspec 0.22).
"""

import json
import math
import threading
from collections.abc import Hashable
from functools import cache
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from msgspec import DecodeError, ValidationError
from msgspec.json import Decoder

LONGEST_REASON = 500  # characters
MOST_SURROGATES_BYTES = 1 << 20  # Python's own parser needs twenty times as much memory
T = TypeVar("T")
_first_use = threading.Lock()


@cache
def _decoder(kind: Hashable) -> "Decoder[Any]":
    with _first_use:
        return Decoder(kind)


def decode(data: bytes, kind: type[T]) -> T:
    """Decodes `data` as a `kind`, a type that msgspec supports. Raises ValueError with a short reason."""
    try:
        found: T = _decoder(cast("Hashable", kind)).decode(data)
    except ValidationError as error:
        raise ValueError(shorten(str(error))) from None
    except (DecodeError, UnicodeDecodeError) as error:
        if len(data) > MOST_SURROGATES_BYTES or (b"\\ud" not in data and b"\\uD" not in data):
            raise ValueError(shorten(str(error))) from None
        # Python writes a byte that is not UTF-8, as in a file name, as a lone surrogate; msgspec cannot read those.
        return _decode_surrogates(data, kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


def convert(value: object, kind: type[T]) -> T:
    """Converts the output of a JSON parser to a `kind`. Raises ValueError with a short reason."""
    _decoder(cast("Hashable", kind))
    try:
        return msgspec.convert(value, kind)
    except ValidationError as error:
        raise ValueError(shorten(str(error))) from None


def _decode_surrogates(data: bytes, kind: type[T]) -> T:
    try:
        return convert(json.loads(data, parse_constant=_refuse, parse_float=_parse_finite), kind)
    except (ValueError, RecursionError) as error:
        raise ValueError(shorten(str(error))) from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _parse_finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        _refuse(text)
    return number


def shorten(text: str) -> str:
    """Another program's text, in one line of limited length. Pure."""
    line = "; ".join(part.strip() for part in text[: 4 * LONGEST_REASON].splitlines() if part.strip())
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 3]}..."
