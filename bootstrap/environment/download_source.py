"""`pip download` of one package's source distribution, without running any of it.

pip itself builds the metadata of what it downloads, which runs the package's code on this machine. Run as a program,
with the arguments of `pip download`. It uses pip's own settings, index, passwords and certificates.
"""

import hashlib
import sys
from optparse import Values
from pathlib import Path

from pip._internal.cli.cmdoptions import make_target_python
from pip._internal.commands.download import DownloadCommand
from pip._internal.exceptions import InstallationError

READ_BYTES = 1 << 20


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


if __name__ == "__main__":
    sys.exit(DownloadSource("download", "Download a source distribution.").main(sys.argv[1:]))
