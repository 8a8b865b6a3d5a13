"""Stands in for a rank that the image's torchrun starts in a container: has it run in a container of its own.

    rank_proxy.py VARIABLES

Sends its stdout, its stderr, and its VARIABLES, a comma-separated list of names, to the socket at $CLUSTER_RANKS, where
node/agent/ranks.py on the node starts the rank. Ends with the rank's exit code. If this process is ended, so is
the rank.

Python 3.6 and later, standard library only: it runs in the image's Python.
"""

import array
import json
import os
import socket
import sys


def main():
    variables = {name: os.environ[name] for name in sys.argv[1].split(",") if name in os.environ}
    descriptors = array.array("i", [1, 2])
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["CLUSTER_RANKS"])
        # The descriptors travel with the first byte.
        connection.sendmsg([b"R"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        connection.sendall(json.dumps(variables).encode("ascii") + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            piece = connection.recv(64)
            if not piece:
                sys.exit("the program that runs this rank on the node was killed")
            answer += piece
    sys.exit(int(answer.decode("ascii")))


if __name__ == "__main__":
    main()
