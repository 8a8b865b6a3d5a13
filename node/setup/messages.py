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
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_telling = threading.Lock()


def send_message(message: Mapping[str, Any]) -> None:
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
            send_message({"alive": True})
        except OSError:
            return  # the program ends when stdin does


def end_with_stdin(take: Callable[[bytes], object]) -> None:
    """Has the first signal, or the end of stdin, interrupt the main thread by SystemExit. take: gets stdin's lines."""
    for number in ENDING:
        signal.signal(number, _leave)
    threading.Thread(target=_read, args=(take,), daemon=True).start()


def _leave(*_: object) -> NoReturn:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(0)


def _read(take: Callable[[bytes], object]) -> None:
    for line in sys.stdin.buffer:
        take(line)
    os.kill(os.getpid(), signal.SIGHUP)


def serve(answer: Callable[[dict[str, Any]], Mapping[str, Any]]) -> NoReturn:
    """Answers requests, one at a time, until a signal or the end of stdin, which interrupt `answer` by SystemExit."""
    requests: SimpleQueue[bytes] = SimpleQueue()
    end_with_stdin(requests.put)
    stay_alive()
    code = 1
    try:
        while True:
            send_message(answer(json.loads(requests.get())))
    except SystemExit:
        code = 0
    except Exception:  # noqa: BLE001 - at its own end, Python would wait for the thread that reads stdin, and abort
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)
