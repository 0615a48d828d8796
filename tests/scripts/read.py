"""Answers queries over the views of runs.

read.py RUN SQL prints the rows as JSON. read.py --serve SOCKET answers, on each connection, one line
{"run": …, "sql": …} with {"rows": …} or {"error": …}. Each answer is by a process of its own, which
has the libraries already.
"""

import json
import os
import signal
import socket
import sys

import duckdb


def rows(run, sql):
    os.chdir(run)
    with duckdb.connect() as db:
        with open("views.sql") as views:
            db.execute(views.read())
        return db.execute(sql).fetchall()


def answer(connection):
    with connection.makefile("rw") as stream:
        question = json.loads(stream.readline())
        try:
            reply = {"rows": rows(question["run"], question["sql"])}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        stream.write(json.dumps(reply, default=float) + "\n")


def serve(path):
    # The kernel reaps the processes.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path + ".new")
        listener.listen(64)
        os.rename(path + ".new", path)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                answer(connection)
                os._exit(0)
            connection.close()


if sys.argv[1] == "--serve":
    serve(sys.argv[2])
else:
    print(json.dumps(rows(*sys.argv[1:]), default=float))
