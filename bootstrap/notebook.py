"""JupyterLab on a node, in an environment of its own, so that the training environment stays as it is locked.

node/notebook/ has its settings and its kernel, which runs the training environment's Python: `python` is that one on a
job's PATH. The kernel finds Jupyter's packages after those of that environment.
"""

import webbrowser
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.environment.bundle import Bundle, find_wheels
from bootstrap.environment.steps import MakeEnvironment, script_task
from bootstrap.ssh.connection import NodeConnection
from bootstrap.transfer.distribute import Distribution, SetUp
from foundation.decode import decode
from foundation.errors import ClusterError
from foundation.files import write_whole
from foundation.progress import Report
from foundation.remote_command import RemoteCommand
from foundation.user_folders import cache_folder

PACKAGES = ("jupyterlab>=4,<5", "ipykernel>=6")
FOLDER = "notebook"
COMMAND = (
    "sh",
    "-c",
    'export CLUSTER_PROJECT="$PWD"; cd "$CLUSTER_OUTPUT_DIR" && exec "$CLUSTER_NOTEBOOK/bin/jupyter-lab"',
)


class Server(Struct, frozen=True, kw_only=True):
    """Where JupyterLab listens on its node, as in the file that it writes there for its user alone."""

    pid: Annotated[int, Meta(ge=2)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    token: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{16,128}\Z")]


def place_notebook(node: ReadyNode, *, job: str, report: Report) -> dict[str, str]:
    """Installs JupyterLab on a node that is set up, unless it is there. Returns the variables of the job that runs it.

    This machine finds the wheels; the node fetches them itself if it can, or gets them from here. Raises ClusterError.
    """
    if node.bundle is None:
        raise ClusterError(f"{node.host.name} is not set up", hint="cluster up")
    target = replace(node.bundle.target, requirements=PACKAGES, limits=(), framework="none", base=None)
    bundle = Bundle(target=target, files=find_wheels(target, (), cache=cache_folder(), report=report))
    folder = f".cluster/{FOLDER}/{bundle.digest}"
    there = node.connection.run(RemoteCommand(f"[ -e {folder}/.complete ] && echo there || :"), timeout_s=60)
    if there.last_line != "there":
        step = MakeEnvironment(bundle=bundle, python=node.python, root=FOLDER, with_modules=False)
        wanted = SetUp(
            python=node.facts.python,
            files=[file for file in bundle.files if file.sha256 not in node.facts.files],
            tasks=[script_task([step], what="installing JupyterLab")],
        )
        with Distribution(report=report) as distribution:
            distribution.set_up(node.connection, wanted)
    settings = f"{node.code_dir}/node/notebook"
    return {
        "CLUSTER_NOTEBOOK": f"{node.facts.home}/{folder}",
        "JUPYTER_CONFIG_PATH": settings,
        "JUPYTER_PATH": settings,
        "JUPYTER_RUNTIME_DIR": f"{node.facts.home}/{_runtime_folder(job)}",
    }


def find_server(connection: NodeConnection, job: str) -> Server | None:
    """Returns where a job's JupyterLab listens; None if it does not listen yet. Raises ClusterError."""
    files = f"{_runtime_folder(job)}/jpserver-*.json"
    text = connection.run(RemoteCommand(f"cat {files} 2>/dev/null || :"), timeout_s=60).stdout
    try:
        return decode(text.encode(), Server) if text else None
    except ValueError as error:
        raise ClusterError(f"{connection.host.name}: {files}: {error}") from None


def open_page(page: Path, url: str) -> None:
    """Opens a URL with a token in the browser by a file for this user alone: all users see the command lines."""
    write_whole(page, f'<!doctype html><meta http-equiv="refresh" content="0; url={url}">'.encode())
    webbrowser.open(page.as_uri())


def _runtime_folder(job: str) -> str:
    return f".cluster/{FOLDER}/run/{job}"
