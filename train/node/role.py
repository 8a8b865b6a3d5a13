"""Runs one process of a job (scheduler, server, worker or set-up) on a node, and ends with it or ends it.

    role.py             under ssh_proxy.py's ssh: the order comes on stdin, reports go to stdout
    role.py launched    under launch.py or mpirun: both over a socket (meeting.py); exits with 0 once it has reported
    role.py join PATH   carries bytes between its stdin and stdout and a `role.py launched` that waits on this host
    role.py end JOB     ends what is left of a job on this host; prints a JSON list of what does not end

The first two run as two processes: this one stays above the other as its guardian (guardian.py).
wire.py has the messages. Secrets come in the order, and go into the process's environment: they are on no command line
and in no file.
Python 3.6 and later, standard library only.
"""

import os
import sys

import guardian
import processes


def guard():
    """Go on below a guardian, which loads no more than what has been loaded by now."""
    try:
        return guardian.fork()
    except OSError as error:  # such as a limit of processes
        sys.exit("role.py cannot start another process: %s" % error)


def end(job):
    """End what is left of a job here."""
    import json

    _, left = processes.end(job)
    print(json.dumps([[pid, words] for pid, _, words in left]))
    return 0


def join(path):
    """Carry bytes to and from a process that waits on this host."""
    import meeting

    return meeting.join(path)


def run():
    """Run what the order says that comes on stdin."""
    guarded_by = guard()
    import runner
    import wire

    order, rest = wire.read_order(0)
    return runner.Runner(order, guarded_by, 0, 1, rest).run()


def run_launched():
    """Run what the supervisor orders over a socket."""
    guarded_by = guard()
    import meeting
    import runner
    import wire

    launched = {key: value for key, value in os.environ.items() if key.startswith("DMLC_")}
    first = {"role": launched["DMLC_ROLE"], "host": os.environ["CLUSTER_HOST"], "launched": launched}
    is_here = "CLUSTER_SOCKET" in os.environ
    connection = meeting.call(first) if is_here else meeting.wait_for_call(first)
    descriptor = connection.fileno()
    order, rest = wire.read_order(descriptor)
    # Its code is told above; launch.py and mpirun would only add a traceback to it.
    runner.Runner(order, guarded_by, descriptor, descriptor, rest, is_pinged=not is_here).run()
    return 0


def main():
    word, *more = sys.argv[1:] or ["run"]
    return {"run": run, "launched": run_launched, "join": join, "end": end}[word](*more)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConnectionError:
        sys.exit(1)  # nobody is there any more, and nothing was started
