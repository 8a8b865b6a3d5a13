"""How MXNet is built from source on the head: which options, which packages, which script. Pure decisions.

The steps are those of MXNet's own guide (docs/static_site/src/pages/get_started/build_from_source.md, v1.7.x; the
versions before it, docs/install/build_from_source.md). They have been tried with a small source of the same shape
alone, not with MXNet's.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from bootstrap.facts import NodeFacts

PREFIX = "source@"
SETUPTOOLS = "setuptools>=70.1,<81"
"""What makes the wheel: the first that has bdist_wheel itself, up to the last with pkg_resources."""
SILENCE_S = 3600
"""How long a build may print nothing, in seconds: one file can take nvcc a quarter of an hour."""
KEEP_S = 600
"""How long a finished wheel may take to be told of, in seconds: it is read through once."""
CUDA_PATH = "/usr/local/cuda"
DEFAULT_OPTIONS = {"USE_DIST_KVSTORE": "1", "USE_S3": "1", "USE_OPENCV": "1", "USE_BLAS": "openblas"}
GPU_OPTIONS = {"USE_CUDA": "1", "USE_CUDNN": "1", "USE_CUDA_PATH": CUDA_PATH}
OFF = ("0", "OFF", "")
# In Debian's package and in Fedora's. What an option needs, every node needs: the library is linked with it.
TOOLS = (("g++", "gcc-c++"), ("git", "git"), ("make", "make"), ("cmake", "cmake"))
BY_OPTION = {
    "USE_OPENCV": (("libopencv-dev", "opencv-devel"),),
    "USE_S3": (("libcurl4-openssl-dev", "libcurl-devel"), ("libssl-dev", "openssl-devel")),
}
OPENBLAS = (("libopenblas-dev", "openblas-devel"), ("liblapack-dev", "lapack-devel"))
EXPORT = """
import shlex, sys
for name, value in sorted(merge(os.environ, read(sys.argv[1], sys.argv[2])).items()):
    if name.isidentifier() and os.environ.get(name) != value:
        print("export %s=%s" % (name, shlex.quote(value)))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceBuild:
    """What is built for nodes of a kind. `ref` is a branch, a tag or a commit; `options` are those of make.

    glibc: the oldest that the wheel runs with, the building node's. cudart: the CUDA library that it finds, or None.
    """

    url: str
    ref: str
    options: tuple[tuple[str, str], ...]
    machine: str
    glibc: tuple[int, int]
    system: str
    cudart: str | None

    @property
    def key(self) -> str:
        """Names all that decides how the wheel turns out, a branch's later commits apart."""
        content = [self.url, self.ref, self.options, self.machine, self.glibc, self.system, self.cudart]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def cuda_path(self) -> str | None:
        """Where the CUDA lies that it is built with; None for the processor alone."""
        options = dict(self.options)
        return options.get("USE_CUDA_PATH", CUDA_PATH) if options.get("USE_CUDA", "0") not in OFF else None


def find_ref(mxnet: str) -> str | None:
    """The branch, tag or commit of "source@v1.7.x"; None where [bootstrap] mxnet names a wheel. Pure."""
    return mxnet.removeprefix(PREFIX) if mxnet.startswith(PREFIX) else None


def choose_build(facts: NodeFacts, *, ref: str, url: str, options: Sequence[str]) -> SourceBuild:
    """What a node would build; `options` are [bootstrap] build_options, which go over what is usual. Pure."""
    usual = {**DEFAULT_OPTIONS, **(GPU_OPTIONS if facts.gpus else {})}
    named = dict(option.split("=", 1) for option in options)
    chosen = {**usual, **named}
    cuda_path = chosen.get("USE_CUDA_PATH", CUDA_PATH)
    there = next((place.names for place in facts.cuda_dirs if place.path.startswith(f"{cuda_path}/")), frozenset[str]())
    return SourceBuild(
        url=url,
        ref=ref,
        options=tuple(sorted(chosen.items())),
        machine=facts.machine,
        glibc=facts.glibc,
        system=facts.system,
        cudart=next((name for name in sorted(there) if name.startswith("libcudart.so.")), None),
    )


def choose_packages(build: SourceBuild) -> tuple[tuple[str, str], ...]:
    """The system's packages that the wheel is linked with, (Debian's name, Fedora's); every node needs them. Pure."""
    options = dict(build.options)
    needed = [package for name, its in BY_OPTION.items() if options.get(name, "0") not in OFF for package in its]
    return (*needed, *(OPENBLAS if options.get("USE_BLAS", "") in {"openblas", "open"} else ()))


def label_built(build: SourceBuild, wheel_name: str) -> str:
    """What a wheel that was built is called where others have a requirement: source@v1.7.x+cu112. Pure."""
    match = re.search(r"-1_(cu[0-9]+)_", wheel_name)
    return f"{PREFIX}{build.ref}" + (f"+{match[1]}" if match else "")


def render_build(build: SourceBuild, *, python: str, node_python: str, setup: str | None) -> str:
    """The shell script that leaves the wheel in ~/.cluster/built/KEY, and nothing before it is whole. Pure.

    python: one with setuptools, from ~/.cluster. setup: the digest of the set-up commands, whose exports it gets.
    A build that was killed is begun anew, for half an object file may lie there; one that failed goes on.
    """
    source = "source"
    lines = ["set -eu", "umask 077", 'cluster="$HOME/.cluster"', "export GIT_TERMINAL_PROMPT=0"]
    if setup is not None:
        program = _program("setup_env.py") + EXPORT
        lines.append(f'exports=$({shlex.join([node_python, "-c", program])} "$cluster" {setup})')
        lines.append('eval "$exports"')
    lines += [
        'mkdir -p "$cluster/building"; cd "$cluster/building"',
        f"[ -f {build.key}/resumable ] || rm -rf {build.key}",
        f"mkdir -p {build.key}; cd {build.key}; rm -f resumable",
        f"if [ ! -d {source} ]; then",
        f"    git clone --quiet --no-checkout -- {shlex.quote(build.url)} {source}.new",
        f"    git -C {source}.new checkout --quiet {shlex.quote(build.ref)} --",
        f"    git -C {source}.new submodule --quiet update --init --recursive",
        f"    mv {source}.new {source}",
        "fi",
        f"commit=$(git -C {source} rev-parse --short=12 HEAD)",
        "tag=1_cpu_$commit",
        *_cuda(build),
        f"cd {source}",
        *_compile(build),
        "rm -rf ../dist; cd python",
        f'"$cluster"/{python} setup.py --quiet bdist_wheel -d ../../dist; cd ../..',
        "for library in source/lib/libmxnet.so source/build/libmxnet.so; do [ ! -f $library ] || break; done",
        shlex.join([node_python, "-c", _program("build_wheel.py"), "pack", build.key, "dist", source])
        + ' "$library" "$tag"',
        f"cd ..; rm -rf {build.key}",
    ]
    return "\n".join([*lines, ""])


def render_tell(build: SourceBuild, *, node_python: str) -> str:
    """The command that says, in JSON, which finished wheel there is; it prints nothing for none. Pure."""
    return shlex.join([node_python, "-c", _program("build_wheel.py"), "tell", build.key])


def _compile(build: SourceBuild) -> list[str]:
    make = shlex.join(f"{name}={value}" for name, value in build.options)
    cmake = shlex.join(f"-D{name}={value}" for name, value in build.options)
    return [
        "if [ -f Makefile ]; then",
        # Else make takes what a command that failed has left for finished, the next time.
        f'    make --eval=.DELETE_ON_ERROR: -j"$(nproc)" {make} || {{ touch ../resumable; exit 1; }}',
        "else",
        f"    cmake -S . -B build -DCMAKE_BUILD_TYPE=Release {cmake} &&",
        '        cmake --build build -j "$(nproc)" || { touch ../resumable; exit 1; }',
        "fi",
    ]


def _cuda(build: SourceBuild) -> list[str]:
    if build.cuda_path is None:
        return []
    nvcc = shlex.quote(f"{build.cuda_path}/bin/nvcc")
    missing = shlex.quote(
        f"there is no {build.cuda_path}/bin/nvcc to build for GPUs with: take an image that has CUDA, install it by "
        '[bootstrap] setup, name another folder in build_options ("USE_CUDA_PATH=..."), or leave it out ("USE_CUDA=0")'
    )
    return [
        f"[ -x {nvcc} ] || {{ echo {missing} >&2; touch resumable; exit 1; }}",
        rf"cuda=$({nvcc} --version | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1\2/p')",
        "tag=1_cu${cuda}_$commit",
    ]


@cache
def _program(name: str) -> str:
    return files("bootstrap").joinpath("node", name).read_text(encoding="utf-8")


def parse_requirements(metadata: str) -> tuple[str, ...]:
    """What a wheel needs beside itself, of its METADATA (core metadata's Requires-Dist), extras left out. Pure."""
    found = [line.partition(":")[2].strip() for line in _head(metadata) if line.lower().startswith("requires-dist:")]
    return tuple(requirement for requirement in found if "extra ==" not in requirement)


def _head(metadata: str) -> Sequence[str]:
    return metadata.partition("\n\n")[0].splitlines()


def check_told(told: Mapping[str, object]) -> bool:
    """Whether what a node tells of its wheel can be a file's name and SHA-256. Pure."""
    name, sha256 = str(told.get("name")), str(told.get("sha256"))
    return bool(re.fullmatch(r"[A-Za-z0-9_.+-]+\.whl", name) and re.fullmatch(r"[0-9a-f]{64}", sha256))
