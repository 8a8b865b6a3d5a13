"""What a job needs to know of AWS, found out by a process of its own while this one reaches the nodes.

boto3 takes half a second of a core before its first call, and as long again goes by here until the nodes answer: Python
does the two side by side only in two processes. answering.py is what runs in the other one.
"""

import pickle
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Self, cast

from provision.errors import ClusterError
from provision.membership import KnownInstances

if TYPE_CHECKING:
    from provision.model import ClusterState
    from train.s3.environment import S3Access
    from train.survey import Survey

# Its path is this process's own; -P keeps the user's folder from the front of it. What lives for half a second is not
# searched for garbage.
PROGRAM = "import gc, sys; gc.disable(); sys.path[:] = {path!r}; import train.answering; train.answering.main()"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Which cluster, and which job's access and data; instance_profile and url: as [provision] and [data] have them.

    known: what this machine knows of the cluster's instances. policy, max_duration_s: see find_s3_access.
    env: the environment that boto3 is to see.
    """

    cluster: str
    known: KnownInstances
    region: str
    instance_profile: str
    url: str | None
    policy: str | None
    max_duration_s: int | None
    env: dict[str, str]


class Asking:
    """The process that asks AWS. It starts at once, and Python and boto3 in it, before it is told what to ask.

    A context manager, which ends it. Each answer is waited for, in this order: state, access, survey.
    """

    def __init__(self) -> None:
        words = [sys.executable, "-P", "-c", PROGRAM.format(path=sys.path)]
        # In the terminal's foreground, as we are: a profile may want an MFA code to be typed.
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._questions = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        with suppress(BrokenPipeError):  # a question that it did not live to read
            self._questions.close()
        self._answers.close()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The process's."""
        return self._process.pid

    def ask(self, question: Question) -> None:
        """Say what is to be found out."""
        with suppress(BrokenPipeError):  # it has ended: the first answer says so
            pickle.dump(question, self._questions)
            self._questions.flush()

    def state(self) -> "ClusterState":
        """The cluster as EC2's tags have it: its nodes alone. Raises AwsError."""
        found: ClusterState = self._take()
        return found

    def access(self) -> "S3Access":
        """The job's access to S3. Raises AwsError, ConfigError."""
        found: S3Access = self._take()
        return found

    def survey(self) -> "Survey":
        """What else AWS says, as far as it does; with it the process ends."""
        found: Survey = self._take()
        return found

    def _take(self) -> Any:
        try:
            answer = pickle.load(self._answers)  # noqa: S301 - our own process's
        except (EOFError, pickle.UnpicklingError):
            raise ClusterError(
                f"the process that asks AWS ended with code {self._process.wait()}", hint="the same command again"
            ) from None
        if isinstance(answer, ClusterError):
            raise answer
        return answer
