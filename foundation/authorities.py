"""The system's file of certificate authorities, which the TLS library of a Python may not know."""

import os

FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
"""Those of Debian, Fedora and SUSE."""


def find_authorities() -> str | None:
    """The path of the first file that exists. OpenSSL's own default is only a folder on Ubuntu 22.04 and Debian 12."""
    return next(filter(os.path.exists, FILES), None)
