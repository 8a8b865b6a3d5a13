"""EC2's error responses on the wire, so that botocore's retries take part."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ec2_sandbox.api.refusals import Refusal, refuse
from provision_world import World


@dataclass
class Wire:
    """Between botocore and the sandbox: records every call except dry runs, and refuses some."""

    app: WSGIApplication
    asked: list[dict[str, str]] = field(default_factory=list)
    refusing: dict[str, tuple[str, int, bool]] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)

    def refuse(self, *actions: str, code: str, times: int = 1, status: int = 400, after: bool = False) -> None:
        """Refuses the next calls of each of these actions, and of no others. after: once they have taken effect."""
        self.refusing = dict.fromkeys(actions, (code, status, after))
        self.times = dict.fromkeys(actions, times)

    @property
    def left(self) -> int:
        """How many calls are still to be refused."""
        return sum(self.times.values())

    def calls(self, action: str) -> list[dict[str, str]]:
        return [asked for asked in self.asked if asked["Action"] == action]

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        body = environ["wsgi.input"].read()
        environ["wsgi.input"] = io.BytesIO(body)
        asked = dict(parse_qsl(body.decode(errors="replace")))
        if "Action" not in asked:
            return self.app(environ, start_response)
        if asked.get("DryRun") != "true":
            self.asked.append(asked)
        action = asked["Action"]
        if self.times.get(action, 0) > 0:
            code, status, after = self.refusing[action]
            # A dry run reports only errors that depend on the account's state.
            if asked.get("DryRun") != "true" or code in {"OptInRequired", "PendingVerification"}:
                self.times[action] -= 1
                if after:
                    list(self.app(environ, lambda *_: lambda _: None))
                refusal = Refusal(status=f"{status} Refused", code=code, message=f"AWS's words on {code}.")
                return refuse(environ, start_response, "ec2", refusal)
        return self.app(environ, start_response)


@contextmanager
def wired(world: World) -> Iterator[Wire]:
    below = world.sandbox.app
    world.sandbox.app = between = Wire(below)
    try:
        yield between
    finally:
        world.sandbox.app = below
