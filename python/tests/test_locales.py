"""Locales that have not all characters. Needs localedef and its sources (Debian's `locales`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import rows
from test_session import script

import profiler


@pytest.mark.parametrize("locale", ["C", "latin1"])
def test_locales_without_utf8(locale: str, tmp_path: Path) -> None:
    variables = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    encoding = "ascii"
    if locale == "latin1":
        command = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(tmp_path / "de_DE.ISO-8859-1")]
        subprocess.run(command, check=True)
        variables.update(LC_ALL="de_DE.ISO-8859-1", LOCPATH=str(tmp_path))
        encoding = "iso8859-1"
    source = """
        import codecs, locale, sys, profiler
        assert codecs.lookup(locale.getpreferredencoding(False)).name == sys.argv[2], locale.getpreferredencoding(False)
        with profiler.run("100ms", sys.argv[1] + "/Läufe".encode().decode(sys.getfilesystemencoding(), "surrogateescape"),
                          run_id="r", label={"size": "groß ☃"}) as p:
            with profiler.region("größe", **{"schlüssel": "☃"}):
                pass
        reader = p.open()
        (region,) = reader.region.arrow().to_pylist()
        assert (region["name"], region["attributes"]) == ("größe", '{"schlüssel":"☃"}'), region
        assert reader.processes()["comm"].notna().all() and len(reader.usage) == len(reader.usage.lazy().collect())
        assert p.summary()["labels"] == {"size": "groß ☃"}, p.summary()["labels"]
        p.export("csv", sys.argv[1] + "/usage.csv", table="usage")
        print(p.path.encode(sys.getfilesystemencoding(), "surrogateescape").hex())
        """
    source = source.encode("ascii", "backslashreplace").decode()
    output = script(source, str(tmp_path), encoding, **variables)
    path = Path(os.fsdecode(bytes.fromhex(output)))
    assert path == tmp_path / "Läufe/r" and [row["name"] for row in rows(profiler.open(path))] == ["größe"]
    assert (tmp_path / "usage.csv").stat().st_size > 100
