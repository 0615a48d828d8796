"""Answers queries over the views of runs.

read.py RUN SQL prints the rows as JSON. read.py --serve SOCKET answers, on each connection, one line
{"run": …, "sql": …} with {"rows": …} or {"error": …}. Each answer is by a process of its own, which
has the libraries already.
"""

import json
import os
import socketserver
import sys

import duckdb


def rows(run, sql):
    os.chdir(run)
    with duckdb.connect() as db:
        with open("views.sql") as views:
            db.execute(views.read())
        return db.execute(sql).fetchall()


class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        question = json.loads(self.rfile.readline())
        try:
            reply = {"rows": rows(question["run"], question["sql"])}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        self.wfile.write(json.dumps(reply, default=float).encode() + b"\n")


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Listens before the socket has its name."""

    def __init__(self, path):
        super().__init__(path + ".new", Answer)
        os.rename(path + ".new", path)


if sys.argv[1] == "--serve":
    Server(sys.argv[2]).serve_forever()
else:
    print(json.dumps(rows(*sys.argv[1:]), default=float))
