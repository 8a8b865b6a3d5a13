"""The cluster's ssh key: ed25519, made on the user's machine, which it never leaves."""

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)


def make_private_key() -> bytes:
    """A new ed25519 private key in OpenSSH's format, without a passphrase."""
    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def public_key_of(private_key: bytes) -> str:
    """Its public half as `type body`, without comment. Raises ValueError for anything but such a key."""
    try:
        loaded = load_ssh_private_key(private_key, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:  # a passphrase; a key type nobody knows
        raise ValueError(str(error)) from error
    return loaded.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
