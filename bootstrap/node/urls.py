"""Takes a file from a URL: a presigned one of S3, or a package index's. Several ranges are on their way at a time.

Python 3.6 and later, standard library only.
"""

import collections
import concurrent.futures
import functools
import http.client
import re
import ssl
import threading
import urllib.error
import urllib.request

from scripts import start_thread

PART_BYTES = 4 << 20
AT_ONCE = 8
READ_BYTES = 1 << 18
TIMEOUT_S = 20
TRIES = 5
FIRST_PAUSE_S = 0.3
BROKEN = (OSError, http.client.HTTPException)


class Unreachable(Exception):
    """None of the URLs gives the file."""


class NoRanges(Exception):
    """The server sends whole files alone."""


def fetch(addresses, arriving, authorities, probe_s=None):
    """Take the rest of a file; `authorities` are more certificates of authorities to trust, PEM, or None.

    probe_s: how long a server may take to answer at all before it is given up, names looked up included; None: as
    long as any answer. Raises Unreachable; store.Damaged, store.DiskFailed.
    """
    why = []
    context = make_context(authorities)
    for address in addresses:
        try:
            if probe_s is not None:
                probe(address, context, probe_s)
            take(address, arriving, context)
        except BROKEN as error:
            why.append("%s: %s" % (show(address), explain(error)))
            continue
        arriving.finish()
        return
    raise Unreachable("; ".join(why))


def make_context(authorities):
    """What this node trusts, and `authorities`: given to create_default_context, they would be all that it trusts."""
    context = ssl.create_default_context()
    if authorities:
        context.load_verify_locations(cadata=authorities)
    return context


def show(address):
    """A URL without its query: that of a presigned one is a secret for as long as it is good."""
    return address.partition("?")[0]


def explain(error):
    """What went wrong, with S3's word for it where it says one."""
    if isinstance(error, urllib.error.HTTPError):
        code = re.search(b"<Code>([A-Za-z]+)</Code>", error.read(2000))
        return "HTTP %d %s" % (error.code, code.group(1).decode("ascii") if code else error.reason)
    return error.reason if isinstance(error, urllib.error.URLError) else error


def probe(address, context, probe_s):
    """Ask for one byte. Raises OSError when nobody answers in time, http.client.HTTPException."""
    answered = []
    over = threading.Event()

    def ask():
        try:
            with open_part(address, 0, 1, context, probe_s):
                answered.append(None)
        except BROKEN as error:
            answered.append(error)
        over.set()

    # Nothing ends a look-up of a name that nobody answers: it is left to itself.
    start_thread(ask)
    if not over.wait(probe_s):
        raise OSError("no answer in %g s" % probe_s)
    if answered[0] is not None:
        raise answered[0]


def take(address, arriving, context):
    """Append the rest of the file. Raises OSError, http.client.HTTPException."""
    try:
        take_parts(address, arriving, context)
    except NoRanges:
        again(lambda: take_whole(address, arriving, context), threading.Event())


def take_whole(address, arriving, context):
    """Append what comes beyond what is there already."""
    offset = 0
    with open_part(address, 0, None, context, TIMEOUT_S) as answer:
        while offset < arriving.size:
            data = answer.read(min(READ_BYTES, arriving.size - offset))
            if not data:
                raise OSError("the answer ended early")
            if offset + len(data) > arriving.have:
                arriving.append(data, offset)
            offset += len(data)


def take_parts(address, arriving, context):
    """Append ranges in their order. Raises NoRanges before anything is taken."""
    offsets = collections.deque(range(arriving.have, arriving.size, PART_BYTES))
    stopped = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        coming = collections.deque()
        try:
            while offsets or coming:
                while offsets and len(coming) < AT_ONCE:
                    offset = offsets.popleft()
                    count = min(PART_BYTES, arriving.size - offset)
                    part = functools.partial(read_part, address, offset, count, context, stopped)
                    coming.append((offset, pool.submit(again, part, stopped)))
                offset, answer = coming.popleft()
                arriving.append(answer.result(), offset)
        finally:
            stopped.set()


def again(ask, stopped):
    """What `ask` returns, tried again where that may help, until it is `stopped`."""
    pause_s = FIRST_PAUSE_S
    for tries_left in reversed(range(TRIES)):
        try:
            return ask()
        except BROKEN as error:
            if not tries_left or is_final(error):
                raise
        if stopped.wait(pause_s):
            break
        pause_s *= 2
    raise OSError("another part did not come")


def is_final(error):
    """Whether the server will not say anything else next time."""
    return isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429


def read_part(address, offset, count, context, stopped):
    """The bytes of a range, asked for once. Raises NoRanges."""
    data = bytearray()
    with open_part(address, offset, count, context, TIMEOUT_S) as answer:
        if answer.status != http.client.PARTIAL_CONTENT:
            raise NoRanges(address)
        while len(data) < count and not stopped.is_set():
            more = answer.read(min(READ_BYTES, count - len(data)))
            if not more:
                raise OSError("the answer ended early")
            data += more
    return bytes(data)


def open_part(address, offset, count, context, timeout_s):
    """The server's answer; count: None for the whole file."""
    headers = {} if count is None else {"Range": "bytes=%d-%d" % (offset, offset + count - 1)}
    if not address.startswith(("http://", "https://")):
        raise OSError("not an address of the web")
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - checked above
    return urllib.request.urlopen(request, timeout=timeout_s, context=context)  # noqa: S310 - the same
