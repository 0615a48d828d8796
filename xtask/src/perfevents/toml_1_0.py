"""Fails if a file below a directory is not TOML 1.0.

The parser of the project also accepts TOML 1.1, which many other programs cannot read.
"""

import pathlib
import sys
import tomllib

files = sorted(pathlib.Path(sys.argv[1]).rglob("*.toml"))
if not files:
    sys.exit(f"{sys.argv[1]}: no TOML files")
errors = []
for file in files:
    try:
        tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        errors.append(f"{file}: {error}")
if errors:
    sys.exit("\n".join(errors))
