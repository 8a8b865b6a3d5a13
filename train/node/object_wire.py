"""One request to S3 and its answer over HTTP(S), and what its refusals mean in plain words: see object_store.py.

Python 3.6 and later, standard library only.
"""

import http.client
import re
import socket
import ssl

CONNECT_TIMEOUT_S = 10.0
TIMEOUT_S = 30.0  # without a byte
PIECE_BYTES = 1 << 18
REFUSAL_BYTES = 1 << 16
PASSING_STATUS = (408, 429, 500, 502, 503, 504)
PASSING_CODES = ("InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown", "OperationAborted")

NETWORK_ERRORS = (OSError, http.client.HTTPException, ssl.CertificateError)


class StoreError(OSError):
    """S3 could not do it; the text says what, where and why. code: S3's own word for it, or ours.

    https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
    """

    def __init__(self, text, code):
        super(StoreError, self).__init__(text)
        self.code = code


class NotFound(StoreError):
    """There is no such object, or no such bucket."""


class Broken(Exception):
    """There was no whole answer. passing: another attempt may get one."""

    def __init__(self, text, passing):
        super(Broken, self).__init__(text)
        self.passing = passing


class Refused(Exception):
    """S3 answered that it does not do it."""

    def __init__(self, status, code, words, region):
        super(Refused, self).__init__("%d %s" % (status, code))
        self.status = status
        self.code = code
        self.words = words
        self.region = region  # the bucket's, where S3 says that

    @property
    def passing(self):
        """Whether it may go well another time."""
        return self.status in PASSING_STATUS or self.code in PASSING_CODES


class Exchange(object):
    """One connection, for one request: nothing is left open between them."""

    def __init__(self, host, context):
        """context: for TLS; None for none."""
        if context is not None:
            self._connection = http.client.HTTPSConnection(host, timeout=CONNECT_TIMEOUT_S, context=context)
        else:
            self._connection = http.client.HTTPConnection(host, timeout=CONNECT_TIMEOUT_S)

    def send(self, method, target, headers, body):
        """Send a request, whose body comes in pieces; the Answer to it.

        Raises Refused, Broken, and what `body` raises.
        """
        done = False
        try:
            self._begin(method, target, headers)
            for piece in body:
                if not self._send_piece(piece):
                    break
            answer = self._answer()
            done = True
        finally:
            if not done:
                self._connection.close()
        if answer.status >= 300:
            raise answer.refusal()
        return answer

    def _begin(self, method, target, headers):
        connection = self._connection
        try:
            connection.connect()
            connection.sock.settimeout(TIMEOUT_S)
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
        except NETWORK_ERRORS as error:
            raise _broken(error) from error

    def _send_piece(self, piece):
        """False when S3 does not listen any more: it refuses before it has read all of it, and its answer tells why."""
        try:
            self._connection.send(piece)
        except (BrokenPipeError, ConnectionResetError):
            return False
        except NETWORK_ERRORS as error:
            raise _broken(error) from error
        return True

    def _answer(self):
        try:
            return Answer(self._connection, self._connection.getresponse())
        except NETWORK_ERRORS as error:
            raise _broken(error) from error


class Answer(object):
    """An answer whose body is still to be read, to its end, which closes the connection."""

    def __init__(self, connection, response):
        self._connection = connection
        self._response = response
        self.status = response.status

    def header(self, name):
        """A header's value, or None."""
        return self._response.getheader(name)

    def headers(self):
        """All headers, a dict, for an answer without a body: one to HEAD."""
        self._connection.close()
        return dict(self._response.getheaders())

    def read(self):
        """The whole body. Raises Broken."""
        return b"".join(self.chunks(PIECE_BYTES))

    def chunks(self, size):
        """The body, piece by piece. Raises Broken when it ends too early."""
        length = self._response.getheader("Content-Length")
        count = 0
        try:
            while True:
                chunk = self._response.read(size)
                if not chunk:
                    break
                count += len(chunk)
                yield chunk
        except NETWORK_ERRORS as error:
            raise _broken(error) from error
        finally:
            self._connection.close()
        if length is not None and self.status != 204 and count != int(length):
            raise Broken("the answer ended after %d of %s bytes" % (count, length), passing=True)

    def refusal(self):
        """What an answer other than 2xx says."""
        try:
            text = self._response.read(REFUSAL_BYTES).decode("utf-8", "replace")
        except NETWORK_ERRORS:
            text = ""  # the status is known, and says enough
        finally:
            self._connection.close()
        code = _find("Code", text) or {404: "NotFound", 403: "AccessDenied"}.get(self.status, str(self.status))
        region = self.header("x-amz-bucket-region") or _find("Region", text)
        return Refused(self.status, code, _find("Message", text) or self._response.reason, region)


def make_context(verified):
    """How TLS is spoken. verified: the other side's certificate is looked at."""
    context = ssl.create_default_context()
    if not verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def explain(refusal, url, region):
    """The StoreError for what S3 refused; region: where it was asked."""
    if refusal.region and refusal.region != region:
        text = "the bucket is in %s, and %s was asked: [provision] region in cluster.toml" % (refusal.region, region)
        return StoreError("%s: %s (S3: %d %s)" % (url, text, refusal.status, refusal.code), code=refusal.code)
    hint = {
        "PermanentRedirect": ": the bucket is in another region than %s" % region,
        "AccessDenied": ": cluster train says before the start what the job's credentials may do",
        "ExpiredToken": ": the job's credentials have ended",
        "RequestTimeTooSkewed": ": the node's clock is wrong; cluster verify compares the clocks",
        "NoSuchBucket": ": cluster data ls shows your buckets",
    }.get(refusal.code, "")
    kind = NotFound if refusal.status == 404 else StoreError
    text = "%s: S3 refuses: %d %s, %s%s" % (url, refusal.status, refusal.code, refusal.words.strip(), hint)
    return kind(text, code=refusal.code)


def pieces(body, size):
    """Bytes, or the first `size` bytes of a file, piece by piece. Raises OSError where the file has become shorter."""
    if isinstance(body, bytes):
        yield body
        return
    body.seek(0)
    while size:
        piece = body.read(min(PIECE_BYTES, size))
        if not piece:
            raise OSError("%s became shorter while it was read" % body.name)
        size -= len(piece)
        yield piece


def _broken(error):
    text = str(error) or type(error).__name__
    certificate = isinstance(error, ssl.CertificateError) or "CERTIFICATE_VERIFY_FAILED" in text
    if isinstance(error, socket.timeout):
        text = "it did not answer within %g s" % TIMEOUT_S
    return Broken(text, passing=not certificate)


def _find(tag, text):
    found = re.search("<%s>([^<]*)</%s>" % (tag, tag), text)
    return found and found.group(1)
