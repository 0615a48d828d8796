"""Opens pages of an MLflow server in a browser, and prints their texts: mlflow_pages.py URI RUN [DIRECTORY]"""

import json
import sys

from playwright.sync_api import sync_playwright

uri, run_id = sys.argv[1:3]
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1500, "height": 1000})
    page.set_default_timeout(60_000)
    run = f"{uri}/#/experiments/0/runs/{run_id}"
    page.goto(f"{run}/system-metrics")
    page.get_by_text("cpu_utilization_percentage", exact=True).first.wait_for()
    page.locator(".main-svg").first.wait_for()
    texts = {"system": page.inner_text("body")}
    if len(sys.argv) > 3:
        page.screenshot(path=f"{sys.argv[3]}/mlflow.png")
    page.goto(f"{run}/artifacts/report.html")
    heading = page.frame_locator("iframe").locator("#verdict")
    heading.wait_for()
    texts["verdict"] = heading.inner_text()
    browser.close()
json.dump(texts, sys.stdout)
