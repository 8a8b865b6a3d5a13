"""Stands in for a program that the node's agent starts: an engine's rank or, with --ssh, mpirun's ssh to a node.

    shim.py VARIABLES          sends the variables whose names begin with one of VARIABLES (separated by commas) to the
                               agent at $CLUSTER_AGENT, which starts the rank as its own child
    shim.py --ssh HOST WORDS   sends the command to the supervisor at $CLUSTER_SOCKET, whose agent on HOST runs it

Then it becomes a shell that waits for the exit code, without the memory of a Python. If the shell is killed, the agent
ends the rank.

Python 3.6 and later, standard library only: it also runs in a container's image.
"""

import json
import os
import socket
import sys
from typing import Dict, List

WAIT = 'read -r code <&"$1" || code=1; exit "$code"'


def main() -> None:
    """Sends the request, and becomes the shell that waits."""
    first, *words = sys.argv[1:]
    if first == "--ssh":
        message = render_program(words)
        address = os.environ["CLUSTER_SOCKET"]
    else:
        prefixes = tuple(first.split(","))
        message = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
        address = os.environ["CLUSTER_AGENT"]
    connection = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(os.path.dirname(address))  # its path may be longer than the kernel's 107 bytes
        connection.connect(os.path.basename(address))
        connection.sendall(json.dumps(message).encode("ascii") + b"\n")
    except OSError as error:
        sys.exit("the program of this job that starts processes has ended: {}".format(error))
    descriptor = connection.detach()
    os.set_inheritable(descriptor, True)  # noqa: FBT003
    os.execv("/bin/sh", ["sh", "-c", WAIT, "sh", str(descriptor)])  # noqa: S606 - the shell is ours


def render_program(words: List[str]) -> Dict[str, str]:
    """Returns the request for mpirun's arguments for ssh."""
    while words[0].startswith("-"):
        words = words[1:]
    # orted checks that its own ssh agent exists, although it does not use it.
    text = " ".join(words[1:]).replace(os.environ["CLUSTER_MPI_SSH"], "/usr/bin/ssh")
    return {"type": "RunProgram", "host": words[0], "text": text}


if __name__ == "__main__":
    main()
