"""S3 for what is staged: objects in ranges, what is known of them, and credentials that are renewed.

Python 3.6 and later, standard library only.
"""

import calendar
import threading
import time

import aws_signature
import instance_credentials
import object_store
import object_wire

RENEW_BEFORE_S = 600  # of the end of an instance's credentials: AWS has the next ones at least 5 minutes before it


class Store(object_store.Store):
    """S3 as a job's environment describes it, and by whom that says: CLUSTER_DATA_CREDENTIALS=instance, this host."""

    def __init__(self, env):
        of_instance = env.get("CLUSTER_DATA_CREDENTIALS") == "instance"
        super(Store, self).__init__(env, find_keys=InstanceKeys().find if of_instance else None)

    def head(self, url, part=None):
        """The headers that S3 answers of an object, or of one of its parts; their names in lower case."""
        bucket, key = object_store.split_object_url(url)
        query = {"partNumber": str(part)} if part else {}
        request = self._request("HEAD", bucket, key, query, {"x-amz-checksum-mode": "ENABLED"})
        headers = self._try(url, lambda: self._send(request).headers())
        return {name.lower(): value for name, value in headers.items()}

    def read_range(self, entry, begin, length, take):
        """Read some bytes of an object that is still what Entry says; take(offset, piece) gets them, perhaps twice."""
        bucket, key = object_store.split_object_url(entry.url)
        headers = {"Range": "bytes=%d-%d" % (begin, begin + length - 1), "If-Match": entry.etag}
        request = self._request("GET", bucket, key, {}, headers)

        def attempt():
            at = begin
            answer = self._send(request)
            for chunk in answer.chunks(object_store.CHUNK_BYTES):
                if at + len(chunk) > begin + length:
                    raise object_wire.Broken("more came than the %d bytes asked for" % length, passing=True)
                take(at, chunk)
                at += len(chunk)
            if at != begin + length:
                raise object_wire.Broken("%d bytes were asked for, %d came" % (length, at - begin), passing=True)

        self._try(entry.url, attempt)


class InstanceKeys(object):
    """The keys of this host's instance profile, asked for anew before they end. For any thread."""

    def __init__(self, address=instance_credentials.ADDRESS):
        self._address = address
        self._lock = threading.Lock()
        self._keys = None
        self._renew_at = 0.0

    def find(self):
        """Keys that are valid now. Raises CredentialsError, where there are none any more."""
        with self._lock:
            if time.time() >= self._renew_at:
                self._renew()
            return self._keys

    def _renew(self):
        try:
            found = instance_credentials.wait_for(self._address)
        except instance_credentials.CredentialsError:
            if self._keys is None:
                raise
            self._renew_at = time.time() + 60  # those that we have may still do; S3 says so when they do not
            return
        self._keys = aws_signature.Keys(found["AccessKeyId"], found["SecretAccessKey"], found["Token"])
        ends_at = calendar.timegm(time.strptime(found["Expiration"], "%Y-%m-%dT%H:%M:%SZ"))
        self._renew_at = max(ends_at - RENEW_BEFORE_S, time.time() + 60)
