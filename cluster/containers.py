"""[container], for the commands: the login for the image, the nodes that pull it, and commands that run in it."""

import base64
import os
from collections.abc import Sequence
from typing import Literal

from bootstrap.apply import ReadyNode
from bootstrap.container.prepare import FindLogin, Login, PreparedImage, prepare
from bootstrap.container.reference import parse_reference
from bootstrap.ssh.host import Host
from cluster.app import App
from cluster.nodes.source import Nodes
from cluster.session import ready_nodes
from foundation.errors import AwsError, ConfigError
from provision.aws.clients import aws_errors
from train.job.containers import shell_words
from train.job.job_plan import choose_launcher_use


def find_login(app: App) -> FindLogin:
    """Returns a function that finds the login for [container] image; it returns None if none is needed.

    Raises ConfigError if the registry's password is not in this machine's environment. The returned function raises
    AwsError.
    """
    config = app.config.container
    registry = config.registry
    if not config.image:
        return lambda: None
    if registry:
        password = os.environ.get(registry.password_env, "")
        if not password:
            raise ConfigError(
                f"container.registry.password_env: the variable {registry.password_env} is not set on this machine",
                hint=f"read -rs {registry.password_env} && export {registry.password_env}, then run the command again",
            )
        login = Login(server=registry.server, username=registry.username, password=password)
        return lambda: login
    reference = parse_reference(config.image)
    if reference.ecr is None:
        return lambda: None
    account, region = reference.ecr
    server = reference.server
    ecr = app.clients.make_ecr(region)

    def ask_ecr() -> Login:
        with aws_errors(f"getting a token for the images of {server}"):
            data = ecr.get_authorization_token(registryIds=[account])["authorizationData"]
        if not data:
            raise AwsError(f"ECR has no token for {server}", hint="correct [container] image")
        username, _, password = base64.b64decode(data[0]["authorizationToken"]).decode().partition(":")
        return Login(server=server, username=username, password=password)

    return ask_ecr


def prepare_image(app: App, nodes: Sequence[ReadyNode], login: FindLogin) -> PreparedImage | None:
    """Pulls [container] image on these nodes, the head first. Returns None without an image.

    Raises ClusterError or a subclass.
    """
    return _prepare(app, nodes, login) if app.config.container.image else None


def _prepare(app: App, nodes: Sequence[ReadyNode], login: FindLogin) -> PreparedImage:
    config = app.config
    framework = config.bootstrap.framework
    return prepare(
        nodes,
        config.container,
        find_login=login,
        uses_environment=framework != "none",
        launcher=choose_launcher_use(config.train, framework),
        report=app.report,
    )


def find_shell(
    app: App, nodes: Nodes, name: str, command: Sequence[str], *, stdin: Literal["pipe", "terminal"]
) -> tuple[Host, tuple[str, ...]]:
    """Sets up the nodes, and pulls the image on one of them. Returns it, and the command line of a container there.

    command: what runs in it; () for a shell. stdin: where its input comes from. Raises ClusterError or a subclass.
    """
    config = app.config
    if not config.container.image:
        raise ConfigError("--container runs commands in [container] image, which is not set", hint="set it")
    login = find_login(app)
    with ready_nodes(app, nodes) as (ready, _):
        node = next(node for node in ready if node.host.name == name)
        line = shell_words(
            config.container,
            _prepare(app, [node], login),
            node,
            command,
            framework=config.bootstrap.framework,
            volumes=[volume.mount for volume in config.volumes],
            stdin=stdin,
        )
    return node.host, line
