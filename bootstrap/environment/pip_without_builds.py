"""pip on the user's machine, which chooses what pip would choose by hand but never runs a package's code.

    python -m bootstrap.environment.pip_without_builds install|download ...    as pip's own commands
    python -m bootstrap.environment.pip_without_builds source ...              downloads one source distribution

To resolve a package that has no wheel, pip builds it to read its metadata, which runs its code. Here `install` and
`download` end instead with NEEDS_BUILD and its NAME==VERSION: the head builds it, and pip is asked again with that
wheel. `--only-binary :all:` would avoid builds too, but then pip silently takes an old version that needs none.
All commands use pip's own settings, index, passwords and certificates.
"""

import hashlib
import sys
from optparse import Values
from pathlib import Path
from typing import Any

from pip._internal.cache import WheelCache
from pip._internal.cli import cmdoptions
from pip._internal.cli.cmdoptions import make_target_python
from pip._internal.cli.main import main as run_pip
from pip._internal.commands.download import DownloadCommand
from pip._internal.distributions.sdist import SourceDistribution
from pip._internal.exceptions import InstallationError
from pip._vendor.packaging.utils import parse_sdist_filename

from bootstrap.environment.requirements import NEEDS_BUILD

READ_BYTES = 1 << 20


def refuse_build(source: SourceDistribution, *_: object, **__: object) -> None:
    """Replaces the method of pip that builds a package to read its metadata. Raises InstallationError."""
    link = source.req.link
    if link is None or not link.filename.endswith((".tar.gz", ".zip")):
        raise InstallationError(f"{source.req} has no wheel, and no source in a form that can be built: {link}")
    name, version = parse_sdist_filename(link.filename)
    raise InstallationError(f"{NEEDS_BUILD}{name}=={version}")


def ignore(*_: object, **__: object) -> Any:
    """Replaces the functions of pip that would refuse sources, or take wheels that pip has built on this machine."""


class DownloadSource(DownloadCommand):
    """Downloads the file that pip would choose, and checks its hash if the index has one."""

    def run(self, options: Values, args: list[str]) -> int:
        """Returns 0. Raises pip's errors, which `main` prints."""
        options.editables = []  # as in pip's own `run`
        session = self.get_default_session(options)
        finder = self._build_package_finder(options, session, target_python=make_target_python(options))
        asked = self.get_requirements(args, options, finder, session)
        [wanted] = [each for each in asked if not each.constraint]
        for limit in asked:
            if limit.constraint and limit.name == wanted.name and wanted.req and limit.req:
                wanted.req.specifier &= limit.req.specifier
        found = finder.find_requirement(wanted, upgrade=True)
        if found is None:
            raise InstallationError(f"No matching distribution found for {wanted}")
        link = found.link
        path = Path(options.download_dir) / link.filename
        with session.get(link.url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True) as answer:
            answer.raise_for_status()
            with path.open("wb") as file:
                for data in answer.iter_content(READ_BYTES):
                    file.write(data)
        with path.open("rb") as file:
            if link.hash_name and hashlib.file_digest(file, link.hash_name).hexdigest() != link.hash:
                raise InstallationError(f"{link.filename}: the download does not have the hash that the index lists")
        return 0


def main(words: list[str]) -> int:
    """Runs one command. Returns its exit code."""
    if words[0] == "source":
        return DownloadSource("download", "Download a source distribution.").main(words[1:])
    setattr(SourceDistribution, "prepare_distribution_metadata", refuse_build)  # noqa: B010 - mypy refuses the other form
    setattr(cmdoptions, "check_dist_restriction", ignore)  # noqa: B010
    setattr(WheelCache, "get_cache_entry", ignore)  # noqa: B010
    return run_pip(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
