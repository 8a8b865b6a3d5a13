"""[container], for the commands: the login for the image, and the nodes that pull it."""

import base64
import os
from collections.abc import Sequence

from bootstrap.apply import ReadyNode
from bootstrap.container.prepare import FindLogin, Login, PreparedImage, prepare
from bootstrap.container.reference import parse_reference
from cluster.app import App
from foundation.errors import AwsError, ConfigError
from provision.aws.clients import aws_errors
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
    config, framework = app.config, app.config.bootstrap.framework
    if not config.container.image:
        return None
    return prepare(
        nodes,
        config.container,
        find_login=login,
        launcher=choose_launcher_use(config.train, framework),
        report=app.report,
    )
