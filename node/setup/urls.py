"""Downloads a file from a package index's URLs, and resumes partial downloads.

Python 3.6 and later, standard library only.
"""

import http.client
import threading
import time
import urllib.error
import urllib.request

from store import start_thread

READ_BYTES = 1 << 18
TIMEOUT_S = 20
TRIES = 5
FIRST_PAUSE_S = 0.3
BROKEN = (OSError, http.client.HTTPException)


class Unreachable(Exception):
    """The file cannot be downloaded from any of the URLs."""


def fetch(addresses, arriving, probe_s=None):
    """Downloads the rest of a file from the first URL that works.

    probe_s: how long a server may take for its first answer, in seconds, name lookup included; None: no probe. Raises
    Unreachable, store.Damaged, store.DiskFailed.
    """
    why = []
    for address in addresses:
        try:
            if probe_s is not None:
                probe(address, probe_s)
            take(address, arriving)
        except BROKEN as error:
            why.append("%s: %s" % (show(address), explain(error)))
            continue
        arriving.finish()
        return
    raise Unreachable("; ".join(why))


def show(address):
    """A URL without its query, which may hold a secret, as in a presigned URL."""
    return address.partition("?")[0]


def explain(error):
    """The reason of an error, in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return "HTTP %d %s" % (error.code, error.reason)
    return error.reason if isinstance(error, urllib.error.URLError) else error


def probe(address, probe_s):
    """Requests one byte. Raises http.client.HTTPException, and OSError, also if the server does not answer in time."""
    answered = []
    over = threading.Event()

    def ask():
        try:
            with open_range(address, 0, 1, probe_s):
                answered.append(None)
        except BROKEN as error:
            answered.append(error)
        over.set()

    # A name lookup cannot be interrupted, so the thread is abandoned.
    start_thread(ask)
    if not over.wait(probe_s):
        raise OSError("no answer in %g s" % probe_s)
    if answered[0] is not None:
        raise answered[0]


def take(address, arriving):
    """Appends the rest of the file, with retries after errors that may pass. Raises the errors in BROKEN."""
    failures = 0
    while arriving.have < arriving.size:
        had = arriving.have
        try:
            take_once(address, arriving)
        except BROKEN as error:
            failures = 1 if arriving.have > had else failures + 1
            if failures == TRIES or is_final(error):
                raise
            time.sleep(FIRST_PAUSE_S * 2 ** (failures - 1))


def is_final(error):
    """Whether a retry is useless."""
    return isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429


def take_once(address, arriving):
    """Appends the missing bytes, without retries. Raises the errors in BROKEN."""
    offset = arriving.have
    with open_range(address, offset, arriving.size - offset, TIMEOUT_S) as answer:
        if answer.status != http.client.PARTIAL_CONTENT:  # the server does not support ranges
            offset = 0
        while offset < arriving.size:
            data = answer.read(min(READ_BYTES, arriving.size - offset))
            if not data:
                raise OSError("the response ended early")
            if offset + len(data) > arriving.have:
                arriving.append(data, offset)
            offset += len(data)


def open_range(address, offset, count, timeout_s):
    """Requests a range of a file. Returns the server's answer. Raises the errors in BROKEN."""
    if not address.startswith(("http://", "https://")):
        raise OSError("not an http or https URL")
    headers = {"Range": "bytes=%d-%d" % (offset, offset + count - 1)}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - checked above
    return urllib.request.urlopen(request, timeout=timeout_s)  # noqa: S310 - the same
