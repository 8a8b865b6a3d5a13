"""What a program on a node sends to the user's machine: JSON, one message a line, and signs of life in between.

Python 3.6 and later, standard library only.
"""

import json
import sys
import threading
import time

ALIVE_EVERY_S = 2.0
_telling = threading.Lock()


def tell(message):
    """Send a message."""
    line = json.dumps(message).encode("utf-8") + b"\n"
    with _telling:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def stay_alive():
    """Send signs of life, in a thread, until this process ends or nobody reads them."""
    threading.Thread(target=_stay_alive, daemon=True).start()


def _stay_alive():
    while True:
        time.sleep(ALIVE_EVERY_S)
        try:
            tell({"alive": True})
        except OSError:
            return  # the end of stdin ends the program
