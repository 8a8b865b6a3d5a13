"""JSON that another machine wrote, held against the form that it has to have.

Whatever the bytes are, the result is a value of that form or a ValueError of one line: not a KeyError, not a
RecursionError, and no number that is infinite or none. Keys that the form does not have are skipped.
"""

import json
from collections.abc import Hashable
from functools import cache
from typing import Any, NoReturn, TypeVar, cast

from msgspec import DecodeError, ValidationError, convert
from msgspec.json import Decoder

LONGEST_REASON = 200
MOST_SURROGATES_BYTES = 1 << 20  # Python's own parser takes twenty times as much memory
T = TypeVar("T")


@cache
def _decoder(kind: Hashable) -> "Decoder[Any]":
    return Decoder(kind)


def decode(data: bytes, kind: type[T]) -> T:
    """`data` as a `kind`, a type that msgspec knows. Raises ValueError, which says in a few words what is wrong."""
    try:
        found: T = _decoder(cast("Hashable", kind)).decode(data)
    except ValidationError as error:
        raise ValueError(shorten_reason(str(error))) from None
    except (DecodeError, UnicodeDecodeError) as error:
        if len(data) > MOST_SURROGATES_BYTES or (b"\\ud" not in data and b"\\uD" not in data):
            raise ValueError(shorten_reason(str(error))) from None
        # Python writes a byte that is no UTF-8, as in the name of a file, as half a surrogate pair; msgspec reads none.
        return _decode_surrogates(data, kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


def _decode_surrogates(data: bytes, kind: type[T]) -> T:
    try:
        return convert(json.loads(data, parse_constant=_refuse), kind)
    except (ValueError, RecursionError) as error:
        raise ValueError(shorten_reason(str(error))) from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def shorten_reason(reason: str) -> str:
    """One line of limited length. Pure."""
    line = " ".join(reason.split())
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 3]}..."
