"""Flintrock and SkyPilot's provisioner, unmodified, on the same sandbox.

Here, neither of them installs anything on the nodes: they launch and tag nodes, wait for ssh, and terminate the nodes.
"""

import json
import select
import shutil
import subprocess
import time
from pathlib import Path

from bench.provisioning.launcher import LAST_LINES, TIMEOUT_S, Launcher, LaunchError, timed_run
from bench.provisioning.tools import install
from bench.provisioning.world import INSTANCE_TYPE, KEY_NAME, REGION, ROLE_NAME, ZONE, World

CLOSE_TIMEOUT_S = 10.0
FOREIGN = Path(__file__).with_name("foreign")
# Replaces what Flintrock expects in an image or installs from the Internet: Python, and Java with its installer.
FLINTROCK_USER_DATA = r"""#!/bin/sh
ln -s /usr/bin/python3 /usr/local/bin/python
printf '#!/bin/sh\n' > /usr/local/bin/yum
printf '#!/bin/sh\necho openjdk version 11.0.20\n' > /usr/local/bin/java
chmod +x /usr/local/bin/yum /usr/local/bin/java
"""


class _Other(Launcher):
    """A launcher with its own home, below the world's folder."""

    def __init__(self, world: World, programs: Path) -> None:
        self._world = world
        self._programs = programs
        self._home = world.folder / type(self).__name__.lower()
        self._home.mkdir()
        self._env = {
            **world.env,
            "HOME": str(self._home),
            "TMPDIR": str(self._home),
            "PYTHONWARNINGS": "ignore",
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        }

    def _run(self, program: str, *words: str) -> float:
        seconds, _ = timed_run([str(self._programs / program), *words], env=self._env, cwd=self._home)
        return seconds

    def forget(self) -> None:
        """Removes the contents of its home. The folder stays, because it may be the working directory of processes."""
        for path in self._home.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


class Flintrock(_Other):
    """`flintrock launch` and `destroy`: one master; the other nodes are slaves."""

    name = "flintrock 2.1.0"

    def __init__(self, world: World) -> None:
        super().__init__(world, install("flintrock", "flintrock==2.1.0"))

    def up(self, count: int) -> float:
        (self._home / "user-data").write_text(FLINTROCK_USER_DATA)
        (self._home / "config.yaml").write_text(json.dumps(self._config(count)))  # JSON is also YAML
        return self._flintrock("launch", "bench", "--ec2-user-data", "user-data", "--assume-yes")

    def down(self) -> float:
        return self._flintrock("destroy", "bench", "--assume-yes")

    def _flintrock(self, *words: str) -> float:
        return self._run("flintrock", "--config", "config.yaml", *words)

    def _config(self, count: int) -> dict[str, object]:
        ec2 = {
            "key-name": KEY_NAME,
            "identity-file": str(self._world.private_key),
            "instance-type": INSTANCE_TYPE,
            "region": REGION,
            "availability-zone": ZONE,
            "ami": self._world.image,
            "user": "ubuntu",
            "min-root-ebs-size-gb": 100,
            "tenancy": "default",
            "ebs-optimized": False,
            "instance-initiated-shutdown-behavior": "terminate",
            "authorize-access-from": [self._world.own_address],
        }
        return {
            "provider": "ec2",
            "providers": {"ec2": ec2},
            "launch": {"num-slaves": count - 1, "install-hdfs": False, "install-spark": False},
        }


class SkyPilot(_Other):
    """SkyPilot's provisioner, as `sky launch` and `sky down` call it, without their server, optimizer and runtime.

    A process that has imported SkyPilot waits for orders and forks for each one. Like SkyPilot's server, it does not
    have to import SkyPilot again.
    """

    name = "skypilot 0.14.1"

    def __init__(self, world: World) -> None:
        super().__init__(world, install("skypilot", "skypilot[aws]==0.14.1"))
        self._log = world.folder / "skypilot.log"
        with self._log.open("w") as log:
            self._server = subprocess.Popen(
                [str(self._programs / "python"), str(FOREIGN / "skypilot_server.py")],
                cwd=self._home,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            self._answer()
        except LaunchError:
            self.close()
            raise

    def up(self, count: int) -> float:
        return self._order("up", count)

    def down(self) -> float:
        return self._order("down", 0)

    def close(self) -> None:
        """Closes the server's input, which ends it. Kills it if it does not end."""
        try:
            self._server.communicate(timeout=CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.communicate()

    def _order(self, verb: str, count: int) -> float:
        order = {
            "verb": verb,
            "count": count,
            "region": REGION,
            "zone": ZONE,
            "instance_type": INSTANCE_TYPE,
            "image": self._world.image,
            "key_name": KEY_NAME,
            "private_key": str(self._world.private_key),
            "instance_profile": ROLE_NAME,
        }
        if self._server.stdin is None:
            raise LaunchError("skypilot: its process has no input")
        started = time.perf_counter()
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        self._answer()
        return time.perf_counter() - started

    def _answer(self) -> None:
        answers = self._server.stdout
        if answers is None or not select.select([answers], [], [], TIMEOUT_S)[0]:
            raise LaunchError(f"skypilot: not done after {TIMEOUT_S:.0f} s")
        if answers.readline() != "done\n":
            output = "\n".join(self._log.read_text().splitlines()[-LAST_LINES:])
            raise LaunchError(f"skypilot: it failed\n{output}")
