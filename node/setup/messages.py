"""Messages between a program on a node and the user's machine: JSON, one per line, with signs of life in between."""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, NoReturn

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


def serve(answer: Callable[[dict[str, Any]], Mapping[str, Any]]) -> NoReturn:
    """Answers requests, one at a time, until a signal or the end of stdin, which interrupt `answer` by SystemExit."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    stay_alive()
    requests: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    code = 1
    try:
        while True:
            tell(answer(requests.get()))
    except SystemExit:
        code = 0
    except Exception:  # noqa: BLE001 - at its own end, Python would wait for the thread that reads stdin, and abort
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def _read(requests: "SimpleQueue[dict[str, Any]]") -> None:
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os.kill(os.getpid(), signal.SIGHUP)
