"""Whether nodes reach each other on the ports that MXNet's parameter server takes: listening here, connecting there.

Who is connected to proves with the secret of this verification that it is the node that was meant.

Python 3.6 and later, standard library only.
"""

import hashlib
import hmac
import os
import queue
import random
import socket
import threading

TIMEOUT_S = 5.0
TRIES = 20
NONCE_BYTES = 16
MAX_PARALLEL = 256


def listen(address, first, last):
    """A socket that listens on a free port of first..last. Raises OSError when TRIES of them were taken."""
    for left in reversed(range(TRIES)):
        port = random.randint(first, last)  # noqa: S311 - nothing depends on it that nobody guesses it
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(256)
        except OSError:
            listener.close()
            if not left:
                raise
            continue
        return listener
    raise AssertionError  # TRIES is not 0


def serve(listener, name, secret):
    """Answer whoever connects, in threads of its own, as long as this process lives."""

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if listener.fileno() == -1:  # closed: nobody is to be answered any more
                    return
                raise
            threading.Thread(target=answer, args=(connection, name, secret), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def answer(connection, name, secret):
    """Prove to the other side that this is the node `name`; whoever does not ask in time is left alone."""
    try:
        connection.settimeout(TIMEOUT_S)
        port = connection.getsockname()[1]
        nonce = _receive(connection, NONCE_BYTES)
        if len(nonce) == NONCE_BYTES:
            connection.sendall(prove(nonce, name, port, secret))
    except OSError:
        return  # the side that connected tells what went wrong
    finally:
        connection.close()


def prove(nonce, name, port, secret):
    """What only the node `name`, listening on that port, and those who know the secret can say. 32 bytes."""
    return hmac.new(secret, nonce + ("%s:%d" % (name, port)).encode("utf-8"), hashlib.sha256).digest()


def connect_all(targets, secret):
    """Connect to every (name, address, port); a list of [name, port, what went wrong or None], in some order."""
    waiting = queue.Queue()
    for target in targets:
        waiting.put(target)
    results = []

    def work_off():
        while True:
            try:
                name, address, port = waiting.get_nowait()
            except queue.Empty:
                return
            results.append([name, port, try_to_connect(name, address, port, secret)])

    threads = [threading.Thread(target=work_off, daemon=True) for _ in range(min(MAX_PARALLEL, len(targets)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def try_to_connect(name, address, port, secret):
    """Connect once and have the other side prove who it is; what went wrong, in words, or None."""
    try:
        connection = socket.create_connection((address, port), timeout=TIMEOUT_S)
    except socket.timeout:
        return "timed out"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    try:
        nonce = os.urandom(NONCE_BYTES)
        connection.sendall(nonce)
        proof = _receive(connection, hashlib.sha256().digest_size)
    except OSError:
        return "no answer"
    finally:
        connection.close()
    return None if hmac.compare_digest(proof, prove(nonce, name, port, secret)) else "wrong answer"


def _receive(connection, size):
    """`size` bytes, or fewer when the other side hangs up. Raises OSError."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            break
        data += more
    return data
