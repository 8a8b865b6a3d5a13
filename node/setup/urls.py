"""Downloads a file from a package index's URLs, and resumes partial downloads.

Python 3.6 and later, standard library only.
"""

import http.client
import time
import urllib.error
import urllib.request

from chain import Stuck

READ_BYTES = 1 << 18
TIMEOUT_S = 20
TRIES = 5
FIRST_PAUSE_S = 0.3
BROKEN = (OSError, http.client.HTTPException)


def fetch(addresses, arriving, first_s=TIMEOUT_S):
    """Downloads the rest of a file from the first URL that works.

    first_s: how long a server may take to accept a connection and to answer, in seconds, as long as nothing has
    arrived. Raises chain.Stuck, store.Damaged, store.DiskFailed.
    """
    why = []
    for address in addresses:
        try:
            take(address, arriving, first_s)
        except BROKEN as error:
            why.append("%s: %s" % (show(address), explain(error)))
            continue
        arriving.finish()
        return
    raise Stuck(why)


def show(address):
    """A URL without its query, which may hold a secret, as in a presigned URL."""
    return address.partition("?")[0]


def explain(error):
    """The reason of an error, in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return "HTTP %d %s" % (error.code, error.reason)
    return error.reason if isinstance(error, urllib.error.URLError) else error


def take(address, arriving, first_s):
    """Appends the rest of the file, with retries after errors that may pass. Raises the errors in BROKEN."""
    failures, begun = 0, arriving.have
    while arriving.have < arriving.size:
        had = arriving.have
        try:
            take_once(address, arriving, TIMEOUT_S if had > begun else first_s)
        except BROKEN as error:
            failures = 1 if arriving.have > had else failures + 1
            is_reached = arriving.have > begun or isinstance(error, urllib.error.HTTPError)
            if failures == TRIES or is_final(error) or not is_reached:
                raise
            time.sleep(FIRST_PAUSE_S * 2 ** (failures - 1))


def is_final(error):
    """Whether a retry is useless."""
    return isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429


def take_once(address, arriving, timeout_s):
    """Appends the missing bytes, without retries. Raises the errors in BROKEN."""
    offset = arriving.have
    with open_range(address, offset, arriving.size - offset, timeout_s) as answer:
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
