"""The process that asks AWS for `cluster train`: see asking.py, which starts it.

stdin: a Question. stdout: the cluster's nodes, the job's access to S3 and the survey, each as soon as it is known; a
ClusterError in place of what could not be found out.
"""

import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from provision.aws import Clients, make_clients
from provision.describe import describe_nodes
from provision.errors import ClusterError
from provision.model import ClusterState
from provision.user_folders import cache_folder
from train.asking import Question
from train.s3.environment import S3Access, find_s3_access
from train.surveyor import Surveyor

# Of EC2 and S3 all that is asked for here, and what botocore itself asks S3 (which region, a session for S3 Express).
OPERATIONS = {
    "ec2": frozenset({"DescribeInstances", "DescribeKeyPairs", "DescribeSecurityGroups"}),
    "s3": frozenset({"ListObjectsV2", "HeadBucket", "GetObject", "CreateSession"}),
}


def answer(question: Question, out: BinaryIO) -> None:
    """Ask for everything side by side, and write the answers in their order."""
    try:
        clients = make_clients(question.region, kept=cache_folder(), operations=OPERATIONS)
    except ClusterError as error:
        write(error, out)
        return
    surveyor = Surveyor(clients, url=question.url)
    with ThreadPoolExecutor() as pool:
        access = pool.submit(_find_access, question, clients)
        for find in (lambda: _find_nodes(question, clients), access.result, surveyor.result):
            try:
                write(find(), out)
            except ClusterError as error:
                write(error, out)


def write(found: object, out: BinaryIO) -> None:
    """Hand an answer over."""
    pickle.dump(found, out)
    out.flush()


def _find_nodes(question: Question, clients: Clients) -> ClusterState:
    return describe_nodes(clients.ec2, name=question.cluster, known=question.known)


def _find_access(question: Question, clients: Clients) -> S3Access:
    return find_s3_access(
        region=question.region,
        instance_profile=question.instance_profile,
        cluster=question.cluster,
        policy=question.policy,
        max_duration_s=question.max_duration_s,
        clients=clients,
    )


def main() -> None:
    """Read the question, and answer it; without a whole one there is nothing to do."""
    try:
        question: Question = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this one
        os.environ.clear()
        os.environ.update(question.env)
        answer(question, sys.stdout.buffer)
    except (EOFError, pickle.UnpicklingError):
        pass
    except KeyboardInterrupt:  # whoever has asked gets it too, and tells of it
        pass
    except BrokenPipeError:  # nobody wants the answer any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
