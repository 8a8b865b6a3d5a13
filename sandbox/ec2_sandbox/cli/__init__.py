"""The command `ec2-sandbox`: its subcommands, their examples, and the settings of a folder."""

from ec2_sandbox.sudo import become_caller


def main() -> None:
    """Runs the command and exits with its code."""
    become_caller()
    from ec2_sandbox.cli import commands  # noqa: PLC0415 - as the caller, to whom files with bytecode then belong

    commands.run()
