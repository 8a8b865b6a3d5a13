"""Messages of a program on a node to the user's machine: JSON, one per line, with signs of life in between."""

import json
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

ALIVE_EVERY_S = 2.0
_telling = threading.Lock()


def tell(message: Mapping[str, Any]) -> None:
    """Sends a message."""
    line = json.dumps(message).encode() + b"\n"
    with _telling:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def stay_alive() -> None:
    """Sends signs of life, in a thread, until this process ends or stdout is closed."""
    threading.Thread(target=_stay_alive, daemon=True).start()


def _stay_alive() -> None:
    while True:
        time.sleep(ALIVE_EVERY_S)
        try:
            tell({"alive": True})
        except OSError:
            return  # the program ends when stdin does
