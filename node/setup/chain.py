"""Passes files from node to node while they arrive: each node takes them from the one before it in the chain.

Every node listens at its private address. Both sides prove that they know the transfer's secret, which came over ssh.
The taking node then requests a file from an offset on, and receives frames:

    D + length + bytes      the next bytes
    W                       a sign of life: no more bytes yet
    N                       this node does not have the file

Silence means that the other node is dead; the taking node continues from the same offset with the node before that one.
Bytes travel unencrypted inside the cluster's security group; the secret keeps other clients from requesting files.

Python 3.6 and later, standard library only.
"""

import errno
import hashlib
import hmac
import os
import socket
import struct
import time

from store import start_thread

FRAME_BYTES = 1 << 18
SAY_STILL_THERE_S = 0.3
SILENCE_S = 1.5
CONNECT_TIMEOUT_S = 2.0
SEND_TIMEOUT_S = 10.0  # for a peer that stops reading
GREETING_S = 3.0  # for a client that does not prove that it knows the secret
ACCEPT_PAUSE_S = 0.1
HEAD = struct.Struct(">cI")
REQUEST = struct.Struct(">32sQ")
NONCE_BYTES = 32


class Refused(Exception):
    """The other side is not a node of this transfer, or does not have the file."""


class Stuck(Exception):
    """No known source provides a file. `why`: a line for each that was asked."""

    def __init__(self, why):
        super(Stuck, self).__init__("; ".join(why))
        self.why = why


def sign(secret, who, *nonces):
    """The proof that `who` knows the secret; the nonces keep it from being replayed."""
    return hmac.new(secret, who + b"".join(nonces), hashlib.sha256).digest()


def receive_exactly(connection, count):
    """Reads `count` bytes. Raises socket.timeout, ConnectionError at an early end."""
    data = bytearray()
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the connection was closed")
        data += more
    return bytes(data)


class Server(object):
    """Serves this node's files to other nodes."""

    def __init__(self, files, address, secret):
        self._store = files
        self._secret = secret
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._listener.bind((address, 0))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            self._listener.bind(("", 0))  # other nodes reach it by an address that a router translates
        self._listener.listen(64)
        self.port = self._listener.getsockname()[1]
        start_thread(self._accept)

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # already closed, or this node is short of memory or descriptors
                time.sleep(ACCEPT_PAUSE_S)
                continue
            start_thread(self._serve, connection)

    def _serve(self, connection):
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(connection)
            while True:
                connection.settimeout(None)
                sha256, offset = REQUEST.unpack(receive_exactly(connection, REQUEST.size))
                connection.settimeout(SEND_TIMEOUT_S)
                self._give(connection, sha256.hex(), offset)
        except (OSError, Refused):
            pass  # the client is gone, or is not a node of this transfer
        finally:
            connection.close()

    def _greet(self, connection):
        connection.settimeout(GREETING_S)
        mine = os.urandom(NONCE_BYTES)
        connection.sendall(mine)
        theirs = receive_exactly(connection, NONCE_BYTES)
        proof = receive_exactly(connection, hashlib.sha256().digest_size)
        if not hmac.compare_digest(proof, sign(self._secret, b"takes", mine, theirs)):
            raise Refused("does not know the secret")
        connection.sendall(sign(self._secret, b"gives", theirs, mine))

    def _give(self, connection, sha256, offset):
        found = self._store.find(sha256)
        if found is None:
            connection.sendall(HEAD.pack(b"N", 0))
            return
        with found.open() as source:
            while offset < found.size:
                have = found.wait_for_more(offset, SAY_STILL_THERE_S)
                if have <= offset:
                    connection.sendall(HEAD.pack(b"W", 0))
                source.seek(offset)
                while offset < have:
                    data = source.read(min(FRAME_BYTES, have - offset))
                    if not data:
                        raise ConnectionError("the file was restarted")  # truncated while it was read
                    connection.sendall(HEAD.pack(b"D", len(data)) + data)
                    offset += len(data)


class Taker(object):
    """Takes files from the nodes before this one. peers: [(address, port), ...], the nearest first."""

    def __init__(self, peers, secret):
        self._peers = list(peers)
        self._secret = secret
        self._connection = None
        self._peer = None

    def take(self, arriving):
        """Takes one file to its end. Raises Stuck, DiskFailed, and Damaged if it arrives damaged."""
        why = []
        for peer in list(self._peers):
            try:
                self._take_from(peer, arriving)
            except Refused as error:
                why.append("%s: %s" % (peer[0], error))
            except OSError as error:
                message = "nothing was heard from it" if isinstance(error, socket.timeout) else str(error)
                why.append("%s: %s" % (peer[0], message))
                self._peers.remove(peer)  # the next file does not wait for it
            else:
                return
            self._hang_up()
        raise Stuck(why)

    def _take_from(self, peer, arriving):
        connection = self._connect(peer)
        connection.sendall(REQUEST.pack(bytes.fromhex(arriving.sha256), arriving.have))
        offset = arriving.have
        while offset < arriving.size:
            kind, length = HEAD.unpack(receive_exactly(connection, HEAD.size))
            if kind == b"N":
                raise Refused("it does not have the file")
            if kind == b"W":
                continue
            if kind != b"D" or not 0 < length <= FRAME_BYTES:
                raise ConnectionError("it sent an invalid frame")
            arriving.append(receive_exactly(connection, length), offset)
            offset += length
        arriving.finish()

    def _connect(self, peer):
        if self._peer == peer and self._connection is not None:
            return self._connection
        self._hang_up()
        connection = socket.create_connection(peer, timeout=CONNECT_TIMEOUT_S)
        self._connection, self._peer = connection, peer
        connection.settimeout(SILENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        theirs = receive_exactly(connection, NONCE_BYTES)
        mine = os.urandom(NONCE_BYTES)
        connection.sendall(mine + sign(self._secret, b"takes", theirs, mine))
        proof = receive_exactly(connection, hashlib.sha256().digest_size)
        if not hmac.compare_digest(proof, sign(self._secret, b"gives", mine, theirs)):
            raise Refused("it does not know the secret of this transfer")
        return connection

    def _hang_up(self):
        if self._connection is not None:
            self._connection.close()
        self._connection = self._peer = None
