"""Fixtures of these tests; each is defined in the module that it belongs to."""

from s3_server import project

__all__ = ["project"]
