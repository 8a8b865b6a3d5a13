"""Looks at one node for `cluster verify`: its clock, its disk, the ports of its peers, and MXNet by way of probes.

It is sent over stdin, with an order after it, and puts no file anywhere. JSON lines, to it:

    {"clock": n}                                   answered at once by {"clock": n, "now": seconds since the epoch}
    {"name": ..., "address": ..., "secret": ..., "ranges": [[first, last], ...], "loader": ..., "python": ...,
     "setup": digest or null, "probes": [{"name": ..., "modules": ..., "order": ..., "timeout_s": ...}, ...]}
    {"peers": [[name, address, [port, ...]], ...]}

and from it:

    {"listening": [port, ...], "refused": why not or null, "disk": [[path, device, free bytes], ...]}
    {"ports": [[peer, port, what went wrong or null], ...]}
    {"probe": name, "result": {"exit_code": ..., "stdout": ..., "stderr": ...}}, in the order of the probes
    {"ended": "ports" or "probes", "error": a traceback or null}, the last word of each
    {"alive": true}                                every other second

It listens until its stdin ends, for its peers; then it ends, and its probes with it.

Python 3.6 and later, standard library only.
"""

import json
import os
import sys
import threading
import time
import traceback

import verify_child
import verify_ports

ALIVE_EVERY_S = 2.0
_telling = threading.Lock()


def tell(message):
    """Say something to the user's machine."""
    line = json.dumps(message).encode("utf-8") + b"\n"
    with _telling:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def look_at_disk():
    """[path, device, bytes that a user may still write] of the home and of /tmp."""
    found = []
    for path in (os.path.expanduser("~"), "/tmp"):  # noqa: S108 - what programs use, whether we like it or not
        status = os.statvfs(path)
        found.append([path, os.stat(path).st_dev, status.f_bavail * status.f_frsize])
    return found


def begin(order):
    """Listen, look at the disk, and start the probes."""
    ports, refused = [], None
    for first, last in order["ranges"]:
        try:
            listener = verify_ports.listen(order["address"], first, last)
        except OSError as error:
            refused = "%s port %d to %d: %s" % (order["address"], first, last, error.strerror or error)
            break
        verify_ports.serve(listener, order["name"], order["secret"].encode("utf-8"))
        ports.append(listener.getsockname()[1])
    tell({"listening": ports, "refused": refused, "disk": look_at_disk()})
    in_background("probes", run_probes, order)


def run_probes(order):
    """One after the other: two MXNets at once would wait for each other's cores."""
    env = verify_child.environment(order["python"], order["setup"])
    command = [order["python"], "-c", order["loader"]]
    for probe in order["probes"]:
        result = verify_child.run(command, [probe["modules"], probe["order"]], env, probe["timeout_s"])
        tell({"probe": probe["name"], "result": result})


def connect_to_peers(peers, secret):
    """Try every port of every peer."""
    targets = [(name, address, port) for name, address, ports in peers for port in ports]
    tell({"ports": verify_ports.connect_all(targets, secret.encode("utf-8"))})


def in_background(name, work, *args):
    """Do something in a thread; that it has ended is told in any case, with the traceback of an error."""

    def follow():
        try:
            work(*args)
        finally:
            tell({"ended": name, "error": traceback.format_exc() if sys.exc_info()[0] else None})

    threading.Thread(target=follow, daemon=True).start()


def stay_alive():
    """Say so, until this process ends."""
    while True:
        time.sleep(ALIVE_EVERY_S)
        tell({"alive": True})


def main():
    """Answer until stdin ends."""
    threading.Thread(target=stay_alive, daemon=True).start()
    secret = ""
    for line in sys.stdin.buffer:
        message = json.loads(line.decode("utf-8"))
        if "clock" in message:
            tell({"clock": message["clock"], "now": time.time()})
        elif "peers" in message:
            in_background("ports", connect_to_peers, message["peers"], secret)
        else:
            secret = message["secret"]
            begin(message)
    verify_child.kill_all()
    sys.stderr.flush()
    # Threads may hold stdout's lock, or be in the middle of a connection: nobody waits for them.
    os._exit(0)
