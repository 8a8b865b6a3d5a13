"""The machine's system as hosts see it: the files that all its users can read, without secrets."""

import os
import stat
from pathlib import Path

import pytest

from ec2_sandbox.hosts.system import Layer, copy_readable, copy_system, is_readable, own_folders

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes files of other owners, and devices")


@needs_root
def test_a_copy_has_what_everybody_can_read(tmp_path: Path) -> None:
    source = tmp_path / "etc"
    (source / "ssl/private").mkdir(parents=True)
    for name, mode in (("passwd", 0o644), ("shadow", 0o640), ("ssl/key.pem", 0o600), ("ssl/cert.pem", 0o644)):
        (source / name).write_text(name)
        (source / name).chmod(mode)
    (source / "ssl/private/key.pem").write_text("secret")
    (source / "ssl/private").chmod(0o710)
    (source / "systemd/network").mkdir(parents=True)
    (source / "systemd/network/peer").write_text("of the machine")
    (source / "localtime").symlink_to("/usr/share/zoneinfo/UTC")
    os.mkfifo(source / "initctl")
    os.chown(source / "passwd", 7, 8)
    copy_readable(source, tmp_path / "copy", {"systemd/network"})
    found = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*")}
    assert found == {"passwd", "ssl", "ssl/cert.pem", "systemd", "localtime"}
    copied = (tmp_path / "copy/passwd").stat()
    assert (copied.st_uid, copied.st_gid, stat.S_IMODE(copied.st_mode)) == (7, 8, 0o644)
    assert (tmp_path / "copy/localtime").readlink() == Path("/usr/share/zoneinfo/UTC")


def test_a_layer_has_the_folders_that_everybody_can_read(tmp_path: Path) -> None:
    for name, mode in (("source", 0o755), ("source/a", 0o755), ("source/a/b", 0o2775), ("source/secret", 0o750),
                       ("source/secret/open", 0o755)):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "source/a/file").touch()
    (tmp_path / "target/a").mkdir(parents=True)
    own_folders(tmp_path / "source", tmp_path / "target")
    found = {path.relative_to(tmp_path): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("target/**/*")}
    assert found == {Path("target/a"): 0o755, Path("target/a/b"): 0o2775}


@needs_root
def test_the_machines_system(tmp_path: Path) -> None:
    layers = copy_system(tmp_path)
    assert [layer.name for layer in layers][:4] == ["etc", "var", "usr", "opt"]
    assert layers[0] == Layer(name="etc", sources=(f"{tmp_path}/etc",))
    assert layers[2].sources[-1] == "/usr"
    copied = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert "etc/passwd" in copied
    assert not copied & {"etc/shadow", "etc/gshadow", "etc/sudoers", "etc/ssh", "etc/ssl/private"}
    modes = [path.lstat().st_mode for path in (tmp_path / "etc").rglob("*")]
    assert all(is_readable(mode) for mode in modes)
    assert stat.S_IMODE((tmp_path / "var/tmp").stat().st_mode) == 0o1777
