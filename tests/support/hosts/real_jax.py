"""An environment with the real JAX, for CPUs, made once."""

from functools import partial

import pytest

from real_mxnet import find_python, make_once, uv_install

JAX = "jax==0.10.2"
VERSIONS = ("3.12", "3.11", "3.13")


def real_jax() -> str:
    """The path of a Python that can import JAX. Skips the test if there is none."""
    python = next(filter(None, map(find_python, VERSIONS)), None)
    if python is None:
        pytest.skip(f"JAX needs one of Python {', '.join(VERSIONS)}")
    return make_once(JAX.replace("==", "-"), python, partial(uv_install, (JAX,)))
