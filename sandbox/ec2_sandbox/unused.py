"""What libraries import for other programs, and the daemon does not use: 20 MB of its memory.

The daemon imports this module before all others, and calls `restore` after them.
"""

import sys
import warnings
from types import ModuleType
from typing import Any

# botocore's other HTTP client, keys with a password, and how requests guesses a text's encoding: all work without.
for absent in ("awscrt", "bcrypt", "chardet", "charset_normalizer"):
    sys.modules.setdefault(absent, None)  # type: ignore[arg-type]  # the type lacks this documented value
warnings.filterwarnings("ignore", "Unable to find acceptable character detection")

import botocore.session  # noqa: E402 - see above


def _stand_in(name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(names)
    return module


STAND_INS = (
    # moto's core only asks a session for the names of the regions.
    _stand_in("boto3", Session=botocore.session.Session),
    # moto's decorators for tests, which import unittest, asyncio and responses: all names exist, none is called.
    _stand_in("moto.core.models", DEFAULT_ACCOUNT_ID="123456789012", __getattr__=lambda _: None),
)
for stand_in in STAND_INS:
    sys.modules.setdefault(stand_in.__name__, stand_in)


def restore() -> None:
    """Lets services of moto that are imported later have the real modules."""
    for module in STAND_INS:
        if sys.modules.get(module.__name__) is module:
            del sys.modules[module.__name__]
