"""A job's credentials, and its copy in S3. Loaded at need: what it takes from the standard library is slow to load.

Python 3.6 and later, standard library only.
"""

import collections

import instance_credentials
import job_folder
import publish


def take_credentials(order):
    """Put the instance's credentials among the job's secrets; returns lines for the user. Raises OSError."""
    return instance_credentials.take(order)


class Copying(object):
    """Copies a job's folder to S3 while it runs, with credentials that are as new as they can be."""

    def __init__(self, order):
        self._order = order
        self._said = collections.deque()  # by the thread that copies
        self._publisher = publish.Publisher(order, job_folder.path(order["job"]), self._secrets, self._said.append)
        self._publisher.start()

    def take_said(self):
        """What there is to tell the user since the last time: lines."""
        lines = []
        while self._said:
            lines.append(self._said.popleft())
        return lines

    def finish(self, timeout_s):
        """Copy what is left; nothing writes to the folder any more.

        Returns whether all is there; if not, it may be called again.
        """
        return self._publisher.finish(timeout_s)

    def _secrets(self):
        fresh = {"nodes_credentials": self._order["nodes_credentials"], "secrets": self._order["secrets"]}
        instance_credentials.take(fresh)
        return fresh["secrets"]
