"""Checks one node for `cluster verify`: its clock, its disk, the ports of its peers, and everything else with probes.

It arrives over stdin, followed by an order, and writes no files. It receives JSON lines:

    {"clock": n}                                   answered at once by {"clock": n, "now": seconds since the epoch}
    {"name": ..., "address": ..., "secret": ..., "ranges": [[first, last], ...], "loader": ..., "python": ...,
     "setup": digest or null, "probes": [{"name": ..., "modules": ..., "order": ..., "timeout_s": ...}, ...]}
    {"peers": [[name, address, [port, ...]], ...]}
    {"together": a probe that all nodes run at the same time, after the others}

and sends:

    {"listening": [port, ...], "refused": why not or null, "free": a free port or null,
     "disk": [[path, device, free bytes], ...]}
    {"ports": [[peer, port, error or null], ...]}
    {"probe": name, "result": {"exit_code": ..., "stdout": ..., "stderr": ...}}, in the order of the probes
    {"ended": "ports", "probes" or "together", "error": a traceback or null}, the last message of each
    {"alive": true}                                every two seconds

It listens for its peers until its stdin ends. With the secret of this verification, it proves to them which node it is.
When stdin ends, it ends, and so do its probes. Probes may hang, abort or crash the interpreter, so each has its own
process.

Python 3.6 and later, standard library only.
"""

import hashlib
import hmac
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from node.setup import setup_env
from node.setup.messages import stay_alive, tell

KEPT_BYTES = 1 << 16  # of a probe's output
TIMEOUT_S = 5.0  # of a peer
TRIES = 20
NONCE_BYTES = 16
MAX_PARALLEL = 256
FREE_RANGE = (20000, 29999)  # below the ports that Linux assigns to clients
_running = set()  # the probes' processes
_running_lock = threading.Lock()


def look_at_disk():
    """[path, device, free bytes for ordinary users] of the home folder and of /tmp."""
    found = []
    for path in (os.path.expanduser("~"), "/tmp"):  # noqa: S108 - the folder that programs use
        status = os.statvfs(path)
        found.append([path, os.stat(path).st_dev, status.f_bavail * status.f_frsize])
    return found


def begin(order):
    """Listens, looks at the disk, and starts the probes."""
    ports, refused = [], None
    for first, last in order["ranges"]:
        try:
            listener = listen(order["address"], first, last)
        except OSError as error:
            refused = "%s port %d to %d: %s" % (order["address"], first, last, error.strerror or error)
            break
        serve(listener, order["name"], order["secret"].encode("utf-8"))
        ports.append(listener.getsockname()[1])
    tell({"listening": ports, "refused": refused, "free": find_free(order["address"]), "disk": look_at_disk()})
    in_background("probes", run_probes, order)


def run_probes(order):
    """Runs the probes one after the other: two MXNets at the same time would compete for the cores."""
    for probe in order["probes"]:
        run_one(order, probe)


def run_one(order, probe):
    """Runs a probe, and sends its result."""
    env = probe_environment(order["python"], order["setup"])
    command = [order["python"], "-c", order["loader"]]
    result = run_probe(command, [probe["modules"], probe["order"]], env, probe["timeout_s"])
    tell({"probe": probe["name"], "result": result})


def connect_to_peers(peers, secret):
    """Tries every port of every peer."""
    targets = [(name, address, port) for name, address, ports in peers for port in ports]
    tell({"ports": connect_all(targets, secret.encode("utf-8"))})


def in_background(name, work, *args):
    """Does `work` in a thread, and always reports its end, with the traceback of an error."""

    def follow():
        try:
            work(*args)
        finally:
            tell({"ended": name, "error": traceback.format_exc() if sys.exc_info()[0] else None})

    threading.Thread(target=follow, daemon=True).start()


# -- probes ------------------------------------------------------------------------------------------------------------


def probe_environment(python, setup):
    """A probe's environment variables; setup: the digest of the user's set-up commands, or None."""
    env = dict(os.environ)
    # Otherwise the framework would use all cores for six numbers.
    env.update({"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"})
    env["PATH"] = "%s:/usr/local/bin:/usr/bin:/bin" % os.path.dirname(python)
    if setup is None:
        return env
    cluster_dir = os.path.join(os.path.expanduser("~"), ".cluster")
    return setup_env.merge(env, setup_env.read(cluster_dir, setup))


def run_probe(command, lines, env, timeout_s):
    """Runs a command with a list of values as JSON lines on stdin. Returns its result as a dict.

    exit_code: None if it was killed after timeout_s seconds, below 0 if a signal ended it.
    """
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    with _running_lock:
        _running.add(process)
    try:
        given = b"".join(json.dumps(line).encode("utf-8") + b"\n" for line in lines)
        stdout, stderr = process.communicate(given, timeout=timeout_s)
        exit_code = process.returncode
    except subprocess.TimeoutExpired:
        _kill(process)
        stdout, stderr = process.communicate()
        exit_code = None
    finally:
        with _running_lock:
            _running.discard(process)
    return {"exit_code": exit_code, "stdout": _tail(stdout), "stderr": _tail(stderr)}


def kill_probes():
    """Kills every probe that still runs."""
    with _running_lock:
        for process in _running:
            _kill(process)


def _kill(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _tail(data):
    return data[-KEPT_BYTES:].decode("utf-8", "replace")


# -- ports -------------------------------------------------------------------------------------------------------------


def listen(address, first, last):
    """Listens on a random free port from first to last. Returns the socket. Raises OSError after TRIES failures."""
    for left in reversed(range(TRIES)):
        port = random.randint(first, last)  # noqa: S311 - no secret
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(256)
        except OSError:
            listener.close()
            if not left:
                raise
            continue
        return listener
    raise AssertionError  # TRIES is not 0


def find_free(address):
    """A port that is free at the moment; None if none is found, or if this node does not have the address."""
    try:
        listener = listen(address, *FREE_RANGE)
    except OSError:
        return None
    port = listener.getsockname()[1]
    listener.close()
    return port


def serve(listener, name, secret):
    """Answers every client, in threads, as long as this process lives."""

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if listener.fileno() == -1:  # closed
                    return
                raise
            threading.Thread(target=answer, args=(connection, name, secret), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def answer(connection, name, secret):
    """Proves to a client that this is the node `name`. A client that sends no request in time gets no answer."""
    try:
        connection.settimeout(TIMEOUT_S)
        port = connection.getsockname()[1]
        nonce = _receive(connection, NONCE_BYTES)
        if len(nonce) == NONCE_BYTES:
            connection.sendall(prove(nonce, name, port, secret))
    except OSError:
        return  # the client reports the error
    finally:
        connection.close()


def prove(nonce, name, port, secret):
    """The proof, by a process that knows the secret, that this is the node `name` listening on `port`. 32 bytes."""
    return hmac.new(secret, nonce + ("%s:%d" % (name, port)).encode("utf-8"), hashlib.sha256).digest()


def connect_all(targets, secret):
    """Connects to every (name, address, port). Returns a list of [name, port, error or None]."""

    def connect(target):
        name, address, port = target
        return [name, port, try_to_connect(name, address, port, secret)]

    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        return list(pool.map(connect, targets))


def try_to_connect(name, address, port, secret):
    """Connects once, and has the other side prove which node it is. Returns the error, or None."""
    try:
        connection = socket.create_connection((address, port), timeout=TIMEOUT_S)
    except socket.timeout:
        return "timed out"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    try:
        nonce = os.urandom(NONCE_BYTES)
        connection.sendall(nonce)
        proof = _receive(connection, hashlib.sha256().digest_size)
    except OSError:
        return "no answer"
    finally:
        connection.close()
    return None if hmac.compare_digest(proof, prove(nonce, name, port, secret)) else "wrong answer"


def _receive(connection, size):
    """Receives `size` bytes, or fewer if the other side hangs up. Raises OSError."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            break
        data += more
    return data


def main():
    """Answers until stdin ends."""
    stay_alive()
    secret, order = "", {}
    for line in sys.stdin.buffer:
        message = json.loads(line.decode("utf-8"))
        if "clock" in message:
            tell({"clock": message["clock"], "now": time.time()})
        elif "peers" in message:
            in_background("ports", connect_to_peers, message["peers"], secret)
        elif "together" in message:
            in_background("together", run_one, order, message["together"])
        else:
            secret, order = message["secret"], message
            begin(order)
    kill_probes()
    sys.stderr.flush()
    # Does not wait for threads, which may hold stdout's lock or a connection.
    os._exit(0)
