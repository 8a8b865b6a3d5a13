"""Words that shells and other programs change, as a job's arguments and in its variables."""

WORDS = (
    "a b", "", "it's", 'a "quote"', "back\\", "$HOME", "$(reboot)", "`id`", "a\nb\n", "\t", "*", "~", "!x", "%41", "=1",
    '{"a": [1, "b c"]}', "-x", "--kv-store", "--help", "--", "a=b;c", "ünïcode", "\x1b[31m",
)  # fmt: skip
VALUE = "|".join(WORDS)
CHECK = f"""
import os, sys
given, wanted = (sys.argv[1:], os.environ.get("ODD")), ({list(WORDS)!r}, {VALUE!r})
print("words arrived" if given == wanted else ascii(given), flush=True)
"""
