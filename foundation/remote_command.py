"""Commands for other hosts: shell text for sh, rendered as one line that every login shell runs.

sshd gives a command to the user's login shell, which may be tcsh, fish or another shell with its own rules for quotes
and newlines. Do not send it shell text: build a RemoteCommand, and send what `line` returns.
"""

import re
import shlex
from base64 import b64encode

HIDDEN = "***"
# The password in a URL, up to the last @ before a blank or another URL: it may itself contain @ or /. A port with a
# path is not a password.
_PASSWORD = re.compile(r"(://[^/\s:]*:)(?!\d+[/?#])(?:(?!://)\S)+@")
_TOKEN = re.compile(r"(https?://)[^/?#\s:@]+@", re.IGNORECASE)  # instead of a user, as git hosts accept it


def hide_passwords(text: str) -> str:
    """The text without the passwords of its URLs. Pure."""
    return _TOKEN.sub(r"\1***@", _PASSWORD.sub(r"\1***@", text))


class Secret:
    """A word that is replaced where the command is printed."""

    def __init__(self, word: str) -> None:
        self.word = word


class Quoted:
    """Words that reach the program unchanged, whatever they contain."""

    def __init__(self, *words: "str | Secret") -> None:
        self.text: str = shlex.join(word.word if isinstance(word, Secret) else word for word in words)
        self.shown: str = " ".join(HIDDEN if isinstance(word, Secret) else shlex.quote(word) for word in words)


class RemoteCommand:
    """Shell text, from pieces that are joined without blanks. str() returns it without its secrets, to be printed.

    text: what sh runs, with its secrets.
    """

    def __init__(self, *pieces: "str | Quoted | RemoteCommand") -> None:
        self.text: str = "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)
        self.shown: str = "".join(piece if isinstance(piece, str) else piece.shown for piece in pieces)

    def __str__(self) -> str:
        return self.shown

    def here(self) -> list[str]:
        """The words that run the text on this host. Pure."""
        return ["/bin/sh", "-c", self.text]

    def line(self) -> str:
        """The line for a login shell: it runs the text in sh, in the same process, with the same stdin. Pure.

        It consists of words that mean the same in bash, dash, zsh, fish and tcsh. Plain text needs no other process.
        """
        if not (self.text.isascii() and self.text.replace("\n", "").isprintable()):
            text = b64encode(self.text.encode("utf-8", "surrogateescape")).decode("ascii")
            return f"exec sh -c 'eval \"$(echo {text} | base64 -d || echo exit 127)\"'"
        text = _quote(self.text)
        return f"exec sh -c {_quote(_JOIN)} sh " + text.replace("\n", "' '") if "\n" in text else f"exec sh -c {text}"


# tcsh refuses a newline in a word, so each line is a word. "$*" joins them with the first character of IFS, which at
# the start of a shell is a space, a tab and a newline.
_JOIN = 'IFS=${IFS#??}; eval "unset IFS; set --; $*"'


def _quote(text: str) -> str:
    """A word for any login shell: fish reads backslashes in single quotes, and tcsh reads exclamation marks. Pure."""
    return "'" + re.sub(r"['\\\\!]", r"'\\\g<0>'", text) + "'"


def run_program(*words: str) -> RemoteCommand:
    """The command that becomes a program, with exactly these words. Pure."""
    return RemoteCommand("exec ", Quoted(*words))


def run_as_root(*words: str) -> RemoteCommand:
    """The command that becomes a program as root, with sudo if the user is not root. Pure."""
    return RemoteCommand('as_root=; [ "$(id -u)" = 0 ] || as_root="sudo -n"; exec $as_root ', Quoted(*words))
