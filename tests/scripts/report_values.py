"""Recomputes the plots of a report from the SQL that it names beside them: report_values.py RUN REPORT

Prints a list of [plot, line, values, largest difference as a share of the line's maximum]."""

import html
import json
import os
import re
import sys

import duckdb

run, report = sys.argv[1:]
with open(report, encoding="utf-8") as file:
    page = file.read()
os.chdir(run)
db = duckdb.connect()
with open("views.sql", encoding="utf-8") as views:
    db.execute(views.read())

start = int(re.search(r'data-start="(\d+)"', page)[1]) / 1e6
seconds = float(re.search(r'data-seconds="([0-9.]+)"', page)[1])
intervals = int(re.search(r'data-intervals="(\d+)"', page)[1])
step = seconds / intervals


class Series:
    """Means over the intervals of the plot."""

    def __init__(self):
        self.integral = [0.0] * intervals
        self.seconds = [0.0] * intervals

    def add(self, ts, length, value):
        end = (ts - start) / step
        begin = end - length / step
        for index in range(max(0, int(begin) - 1), min(intervals, int(end) + 2)):
            covered = (min(end, index + 1) - max(begin, index)) * step
            if covered > 0:
                self.integral[index] += value * covered
                self.seconds[index] += covered

    def fill(self, sampled):
        """Adds values of 0 for the time that only the samples of processes cover."""
        pairs = zip(self.seconds, sampled.seconds)
        self.seconds = [max(own, known) for own, known in pairs]

    def mean(self, index):
        return self.integral[index] / self.seconds[index] if self.seconds[index] > 0 else None

    def is_clear(self, index):
        """Whether rounding cannot decide if there is a value."""
        return self.seconds[index] == 0 or self.seconds[index] > 1e-4


def series(query):
    """The series of a query by host and, if there is one, device, CPU or rank."""
    found = {}
    result = db.execute(query)
    columns = [column[0] for column in result.description]
    keys = columns.index("ts")
    result = db.execute(f"SELECT * REPLACE (epoch_us(ts) / 1e6 AS ts) FROM ({query})")
    for row in result.fetchall():
        ts, length, value = row[keys:]
        if value is not None and length:
            found.setdefault(row[:keys], Series()).add(ts, length, value)
    if re.search(r"FROM \(?(SELECT rows.*, task_rank FROM )?(file_io|block_io|net_io|syscalls)\b", query):
        for key, each in found.items():
            sampled = samples.get(key) or samples.get(key[:1])
            if sampled:
                each.fill(sampled)
    return columns[-1], found


def expected(found, unit, index):
    values = [value for value in (each.mean(index) for each in found) if value is not None]
    if not values:
        return None
    return sum(values) / len(values) if unit == "%" else sum(values)


def compared(drawn, found, unit):
    """Number of values, and the largest difference."""
    count, difference = 0, 0.0
    largest = max((abs(value) for value in drawn if value is not None), default=0) or 1
    for index, value in enumerate(drawn):
        if not all(each.is_clear(index) for each in found):
            continue
        wanted = expected(found, unit, index)
        if value is None and wanted is None:
            continue
        if value is None or wanted is None:
            difference = float("inf")
            continue
        difference = max(difference, abs(value - wanted) / largest)
        count += value is not None
    return count, difference


def shares(figure, queries):
    """Compares the parts of the bars of processes, in percent."""
    totals = {}
    for query in queries:
        keys = "host || ' ' || pid || ' ' || epoch_us(start_ts)"
        for process, value in db.execute(f"SELECT {keys}, * EXCLUDE (host, pid, start_ts) FROM ({query})").fetchall():
            totals.setdefault(process, []).append(value or 0)
    for process, bar in re.findall(r'<g data-subject="process ([^"]+)">(.*?)</g>', figure):
        drawn = [float(share) for share in re.findall(r"<title>[^:]*: ([0-9.]+) %", bar)]
        wanted = [100 * value / sum(totals[process]) for value in totals[process] if value]
        worst = max(abs(a - b) for a, b in zip(drawn, wanted, strict=True))
        yield ["process-time", process, len(drawn), max(0, worst - 0.05) / 100]


# By host, and by host and rank.
samples = {}
length = "max(interval_ns) / 1e9, 1e0 AS sampled"
samples |= series(f"SELECT host, ts, {length} FROM usage GROUP BY ALL")[1]
ranked = "usage JOIN process USING (host, pid, start_ts) WHERE task_rank IS NOT NULL"
samples |= series(f"SELECT host, task_rank, usage.ts AS ts, max(usage.interval_ns) / 1e9, 1e0 AS sampled FROM {ranked} GROUP BY ALL")[1]

results = []
for name, figure in re.findall(r'<figure id="plot-([^"]+)">(.*?)</figure>', page, re.S):
    sql = re.search(r"<pre>(.*?)</pre>", figure, re.S)
    data = re.search(r'class="data">(.*?)</script>', figure, re.S)
    if not sql:
        continue
    queries = html.unescape(sql[1]).split(";\n")
    if name == "process-time":
        results += shares(figure, queries)
    queries = [query for query in queries if " AS seconds" in query]
    if not queries or not data:
        continue
    by_figure = dict(series(query) for query in queries)
    data = json.loads(data[1])
    for line in data["lines"]:
        label, drawn, figure_name = line[:3]
        if data.get("rows"):
            # A row of a heat map is named by the end of its key.
            [found] = by_figure.values()
            *before, last = label.split()
            hosts = [part for part in before if part not in ("CPU", "rank")]
            is_of = lambda key: str(key[-1]) == last and (not hosts or key[0] == hosts[0])
            found = [each for key, each in found.items() if is_of(key)]
        else:
            found = by_figure[figure_name]
            subject = line[3]
            if subject:
                found = {key: each for key, each in found.items() if subject.endswith(" ".join(key))}
            found = list(found.values())
        results.append([name, label, *compared(drawn, found, data["unit"])])
print(json.dumps(results))
