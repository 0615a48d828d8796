"""`python -m profiler`: profiles a Python program from its first instruction."""

from __future__ import annotations

import os
import sys

from . import _binary
from ._errors import Error

USAGE = """\
usage: python -m profiler [OPTION…] -- SCRIPT [ARGUMENT…]
       python -m profiler [OPTION…] -- -m MODULE [ARGUMENT…]

Profiles a Python program and its descendants, and ends with its exit code. The options are those of
`profiler run`, such as -i 100ms, -o DIRECTORY and --label KEY=VALUE; `profiler run --help` lists them.
Without options, `--` can be omitted.
"""


def main() -> None:
    options, program = _split(sys.argv[1:])
    if options in (["-h"], ["--help"]):
        print(USAGE, end="")
    elif not program:
        sys.exit(f"{USAGE}error: no script")
    else:
        try:
            binary = _binary.find()
        except Error as error:
            sys.exit(f"error: {error}")
        os.execv(binary, [binary, "run", *options, "--", sys.executable, *program])


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Options and the program; an argument `--` behind the name of a script is its own."""
    if arguments and not arguments[0].startswith("-"):
        return [], arguments
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:place], arguments[place + 1 :]


if __name__ == "__main__":
    main()
