"""The data of a job on its host: what is brought there before its first process starts, and what is copied to S3."""

import asyncio
import contextlib
import shlex
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from node.protocol import SAVED_AT, STAGED
from node.tasks import Tasks

if TYPE_CHECKING:
    from node.agent import work_folder
    from node.staging.local_data import LocalData
    from node.staging.outputs import Outputs

NOTE_OPEN_S = 1.0
Message = Callable[[str], None]
"""Shows the user a line, as output of a process."""


class JobData:
    """The data of one job. paths: of what has been brought, by URL."""

    def __init__(self, job: str, tasks: Tasks) -> None:
        self._job, self._tasks = job, tasks
        self._stopped = threading.Event()
        self._data: LocalData | None = None
        self._outputs: Outputs | None = None
        self._beginning: asyncio.Task[None] | None = None  # to copy outputs
        self._is_copying = asyncio.Event()  # the rest of them
        self._is_late = asyncio.Event()  # to copy more of them
        self.is_finishing = False  # the rest of them is to be copied
        self.is_left = False  # some of them could not be copied
        self.paths: dict[str, str] = {}

    @property
    def folder(self) -> str | None:
        """The folder of [data] url on this host, if it has been brought there."""
        return self._data.folder if self._data is not None else None

    async def bring(self, env: Mapping[str, str], message: Message) -> str | None:
        """Brings what the job reads, and what S3 has where it saves. Returns why that failed, or None.

        env: that of the process that waits for it.
        """
        if STAGED not in env and SAVED_AT not in env:
            return None
        from node.staging import local_data  # noqa: PLC0415 - importing obstore takes 0.1 s

        soon = _soon(message)

        def bring() -> None:
            outputs = self._open_outputs(env, soon)
            data = self._data = local_data.LocalData(env, soon, self._stopped)
            saved = outputs.find_saved()
            self.paths = {**data.bring(shlex.split(env.get(STAGED, "")), saved), **outputs.paths}
            outputs.note_saved(saved)

        try:
            await asyncio.to_thread(bring)
        except (OSError, ValueError, local_data.DataError, local_data.Stopped) as error:
            return local_data.explain(error)
        return None

    def copy_outputs(self, env: Mapping[str, str], message: Message) -> None:
        """Begins to copy $CLUSTER_OUTPUT_DIR to S3, once."""
        has_place = env.get("CLUSTER_OUTPUT_URL", "").startswith("s3://") or SAVED_AT in env
        if has_place and self._beginning is None:
            self._beginning = self._tasks.begin(self._begin_outputs(env, message))

    async def _begin_outputs(self, env: Mapping[str, str], message: Message) -> None:
        try:
            (await asyncio.to_thread(self._open_outputs, env, _soon(message))).begin()
        except OSError as error:  # no credentials
            self.is_left = True
            message(f"$CLUSTER_OUTPUT_DIR is not copied to [data] results: {error}")

    def _open_outputs(self, env: Mapping[str, str], message: Message) -> "Outputs":
        from node.staging.outputs import Outputs  # noqa: PLC0415 - importing obstore takes 0.1 s

        if self._outputs is None:
            self._outputs = Outputs(self._job, env, message)
        return self._outputs

    async def note_open(self) -> None:
        """Notes which files are being written, before processes are killed."""
        if self._outputs is not None:
            # Files may be on a dead volume. In Python 3.10, asyncio has a TimeoutError of its own.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(self._outputs.note_open), NOTE_OPEN_S)

    def note_killed(self) -> None:
        """Notes that a process was killed, and not by the agent."""
        if self._outputs is not None:
            self._outputs.note_killed()

    def stop(self) -> None:
        """Ends `bring` soon."""
        self._stopped.set()

    def begin_to_finish(self) -> bool:
        """Notes that the job's processes have ended. Returns whether there are outputs to copy."""
        self.is_finishing = self._beginning is not None
        return self.is_finishing

    def limit_copy(self, copy_s: float | None) -> None:
        """Limits how long the copy of `finish` takes, from now on if it has begun; None: as long as S3 answers."""
        if copy_s is not None:
            self._tasks.begin(self._limit_copy(copy_s))

    async def _limit_copy(self, copy_s: float) -> None:
        await self._is_copying.wait()
        await asyncio.sleep(copy_s)
        self._is_late.set()

    async def finish(self) -> None:
        """Copies the rest of the outputs, if any were to be copied."""
        if self._beginning is None:
            return
        await asyncio.wait([self._beginning])
        if self._outputs is not None:
            self._is_copying.set()
            copying = asyncio.ensure_future(asyncio.to_thread(self._outputs.finish))
            late = asyncio.ensure_future(self._is_late.wait())
            await asyncio.wait([copying, late], return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                copying.result()
            self.is_left = self._outputs.report_left()

    def is_copied(self, entry: "work_folder.Entry") -> bool:
        """Whether S3 has a file of the job, as it stays: False before `finish`, while processes may write it."""
        return self._outputs is not None and self._is_copying.is_set() and self._outputs.is_copied(entry)

    async def close(self) -> None:
        """Removes the job's own folder of data."""
        if self._data is not None:
            await asyncio.to_thread(self._data.close)


def _soon(message: Message) -> Message:
    """A function that says lines from other threads."""
    loop = asyncio.get_running_loop()

    def soon(line: str) -> None:
        loop.call_soon_threadsafe(message, line)

    return soon
