"""Fixtures of these tests; each stands in the module that it belongs to."""

from s3_server import project, server, shared_server

__all__ = ["project", "server", "shared_server"]
