"""Opens a report or the manual in headless Chromium and prints facts about it as JSON, without judging them.

browser.py page REPORT PREFIX   what loading, screenshots and printing gave; images are PREFIX-*.png
browser.py use REPORT           what happens when a reader uses its controls
browser.py device REPORT        what a click on the second GPU of a legend shows
browser.py site INDEX WORDS     what a search of the manual finds, and the page of the first result
browser.py pdf FILE             pages, size of the first one, and text of a PDF
"""

import json
import os
import sys

import pypdfium2
from PIL import Image
from playwright.sync_api import sync_playwright

OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIZE = {"width": 1100, "height": 900}

# Sections: target of each link of the navigation, heading, whether it is visible.
SECTIONS = """() => [...document.querySelectorAll('nav a')].map(link => {
    const section = document.querySelector('main section' + link.getAttribute('href'));
    const heading = section && section.querySelector('h2');
    return {
        id: link.getAttribute('href').slice(1),
        link: link.textContent,
        heading: heading && heading.textContent,
        is_visible: Boolean(heading && heading.getClientRects().length),
        height: section ? section.getBoundingClientRect().height : 0,
    };
})"""

# Size of everything that must be readable.
BOXES = """selector => [...document.querySelectorAll(selector)].map(element => {
    const box = element.getBoundingClientRect();
    return {
        width: box.width,
        height: box.height,
        left: box.left,
        right: box.right,
        is_visible: getComputedStyle(element).visibility === 'visible',
    };
})"""

# First contentful paint, once the browser has noted it.
PAINT = """async () => {
    for (let frame = 0; frame < 600; frame += 1) {
        const entry = performance.getEntriesByName('first-contentful-paint')[0];
        if (entry) return entry.startTime;
        await new Promise(done => setTimeout(done, 10));
    }
    return null;
}"""

DRAWINGS = "main figure > svg"
TABLES = "main table"


def statistics(image):
    """Colours and the share of pixels that are not background, whose colour is that of the corner."""
    image = image.convert("RGB")
    colours = image.getcolors(1 << 24)
    background = image.getpixel((0, 0))
    pixels = image.width * image.height
    return {
        "width": image.width,
        "height": image.height,
        "colours": len(colours),
        "background": background,
        "drawn": 1 - sum(count for count, colour in colours if colour == background) / pixels,
    }


class Browser:
    def __init__(self, playwright, address):
        self.address = address
        self.chromium = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", headless=True, args=OPTIONS
        )

    def open(self, **settings):
        """A page with the report, and what the browser had to say about it."""
        context = self.chromium.new_context(viewport=SIZE, **settings)
        page = context.new_page()
        heard = {"console": [], "errors": [], "requests": []}
        page.on("console", lambda message: heard["console"].append(message.text))
        page.on("pageerror", lambda error: heard["errors"].append(str(error)))
        context.on("request", lambda request: heard["requests"].append(request.url))
        page.goto(self.address)
        return page, heard


def page_facts(browser, prefix):
    paints = []
    # Other load delays the browser: the shortest time is that of the report.
    for _ in range(3):
        page, heard = browser.open(color_scheme="light")
        paints.append(page.evaluate(PAINT))
        if len(paints) < 3:
            page.context.close()
    facts = {
        "paint_ms": min(paint for paint in paints if paint is not None),
        "policy": page.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content"),
        "sections": page.evaluate(SECTIONS),
        "drawings": page.evaluate(BOXES, DRAWINGS),
        "tables": page.evaluate(BOXES, TABLES),
        "buttons": page.locator("button").count(),
        "scrolls_sideways": page.evaluate(
            "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"
        ),
    }
    # What the browser reports after the page is loaded.
    page.wait_for_timeout(200)
    facts |= heard
    # An unhidden caret: Playwright's own style sheet would violate the policy of the report.
    image = lambda name: {"path": f"{prefix}-{name}.png", "full_page": True, "caret": "initial"}
    page.screenshot(**image("light"))
    page.context.close()

    page, _ = browser.open(color_scheme="dark")
    page.screenshot(**image("dark"))
    page.context.close()

    page, _ = browser.open(color_scheme="dark")
    page.pdf(path=f"{prefix}.pdf", format="A4", print_background=True)
    page.context.close()
    with pypdfium2.PdfDocument(f"{prefix}.pdf") as document:
        facts["pages"] = len(document)
        facts["size_in_points"] = document[0].get_size()
        facts["printed_text"] = document[0].get_textpage().get_text_range()
        images = [page.render(scale=100 / 72).to_pil() for page in document]
    for number, image_of_page in enumerate(images, 1):
        image_of_page.save(f"{prefix}-print{number}.png")
    facts["print"] = [statistics(image_of_page) for image_of_page in images]
    facts["pdf_bytes"] = os.path.getsize(f"{prefix}.pdf")
    for scheme in ["light", "dark"]:
        with Image.open(f"{prefix}-{scheme}.png") as screenshot:
            facts[scheme] = statistics(screenshot)

    page, _ = browser.open(java_script_enabled=False)
    facts["without_scripts"] = {
        "drawings": page.evaluate(BOXES, DRAWINGS),
        "tables": page.evaluate(BOXES, TABLES),
        "sections": page.evaluate(SECTIONS),
        "buttons": page.locator("button").count(),
    }
    page.context.close()
    return facts


class Reader:
    """Uses the controls of the report."""

    def __init__(self, page):
        self.page = page
        self.plot = page.locator("figure:has(script.data) svg.chart").first
        self.figure = page.locator("figure:has(script.data)").first

    def views(self):
        """Visible part of each drawing: left edge and width."""
        return self.page.evaluate(
            """() => [...document.querySelectorAll('svg.view')].map(view => {
                const { x, width } = view.viewBox.baseVal;
                return [x, width];
            })"""
        )

    def at(self, share):
        """The point of the plot at this share of the visible time."""
        self.plot.scroll_into_view_if_needed()
        box = self.plot.bounding_box()
        # The axes are 64 of 760 units on the left and 8 on the right.
        x = box["x"] + box["width"] * (64 + share * 688) / 760
        return x, box["y"] + box["height"] / 2

    def drag(self, start, end):
        self.page.mouse.move(*self.at(start))
        self.page.mouse.down()
        self.page.mouse.move(*self.at((start + end) / 2))
        self.page.mouse.move(*self.at(end))
        self.page.mouse.up()

    def tooltip(self, share):
        self.page.mouse.move(*self.at(share))
        tip = self.page.locator(".tip")
        text = tip.inner_text() if tip.is_visible() else None
        return {"share": share, "text": text}

    def csv(self):
        with self.page.expect_download() as download:
            self.figure.locator("button.csv").click()
        with open(download.value.path(), encoding="utf-8") as file:
            return {"name": download.value.suggested_filename, "text": file.read()}

    def after_keys(self, *keys):
        self.plot.focus()
        for key in keys:
            self.page.keyboard.press(key)
        return self.views()


def rows(table):
    return table.locator("tbody tr").evaluate_all(
        """rows => rows.map(row => ({
            cells: [...row.cells].map(cell => cell.textContent),
            hidden: !row.getClientRects().length,
        }))"""
    )


def table_facts(table):
    headings = table.locator("thead th")
    facts = {"headings": headings.all_inner_texts(), "rows": rows(table), "sorted": []}
    for column in range(headings.count()):
        heading = headings.nth(column)
        for _ in range(2):
            heading.locator("button").click()
            cells = [row["cells"][column] for row in rows(table)]
            order = heading.get_attribute("aria-sort")
            facts["sorted"].append({"column": column, "order": order, "cells": cells})
    # A word of the first row, in other letters. Small tables cannot be searched.
    facts["word"] = facts["rows"][0]["cells"][-1].split()[0].upper()
    search = table.locator("xpath=../preceding-sibling::*[1][self::input]")
    if search.count():
        search.fill(facts["word"])
        facts["searched"] = rows(table)
        search.fill("")
        facts["cleared"] = rows(table)
    return facts


def selection(page, reader):
    """A click on the first row of processes, and Escape."""
    row = page.locator("tr[data-subject^='process ']").first
    subject = row.get_attribute("data-subject")
    row.click()
    subjects = json.loads(page.locator("script.subjects").text_content())
    state = lambda: {
        "chip": page.locator(".chip").inner_text() if page.locator(".chip").is_visible() else None,
        "filtered": page.locator("figure.filtered").count(),
        "hidden": page.locator("figure.off").count(),
        "rows": page.locator("tr[data-subject^='process ']").evaluate_all(
            "rows => rows.filter(row => row.getClientRects().length).length"
        ),
    }
    facts = {
        "subject": subject,
        "figures": subjects[subject]["figures"],
        "during": state(),
        "csv": reader.csv(),
    }
    reader.plot.focus()
    page.keyboard.press("Escape")
    facts["after"] = state()
    return facts


def use(browser):
    page, heard = browser.open()
    reader = Reader(page)
    facts = {
        "seconds": float(page.locator("article").get_attribute("data-seconds")),
        "figure": reader.figure.get_attribute("id"),
        "intervals": int(page.locator("article").get_attribute("data-intervals")),
        "data": json.loads(reader.figure.locator("script.data").text_content()),
        "whole": reader.views(),
        "tooltips": [reader.tooltip(share) for share in [0.1, 0.33, 0.5, 0.9]],
        "whole_csv": reader.csv(),
    }
    reader.drag(0.25, 0.75)
    facts["dragged"] = reader.views()
    facts["dragged_tooltip"] = reader.tooltip(0.5)
    facts["dragged_csv"] = reader.csv()
    facts["keys"] = {
        "Escape": reader.after_keys("Escape"),
        "+": reader.after_keys("+"),
        "ArrowRight": reader.after_keys("ArrowRight"),
        "ArrowLeft": reader.after_keys("ArrowLeft"),
        "-": reader.after_keys("-"),
    }
    # From right to left.
    reader.drag(0.75, 0.25)
    facts["dragged_back"] = reader.views()
    # Less than two intervals: too little to draw.
    shortest = 1.5 / facts["intervals"] / 0.5
    reader.drag(0.5 - shortest / 2, 0.5 + shortest / 2)
    facts["too_short"] = reader.views()
    facts["too_short_tooltip"] = reader.tooltip(0.2)
    page.locator("button.reset").click()
    facts["reset"] = reader.views()
    page.mouse.move(2, 2)
    facts["tip_is_hidden"] = page.locator(".tip").is_hidden()

    facts["selection"] = selection(page, reader)
    tables = page.locator("main table")
    facts["tables"] = [table_facts(tables.nth(index)) for index in range(tables.count())]
    return facts | heard


def device(browser):
    page, heard = browser.open()
    entry = page.locator("#gpu li[data-subject]").nth(1)
    entry.click()
    plots = page.evaluate(
        """() => [...document.querySelectorAll('figure.filtered')].map(figure => ({
            id: figure.id,
            lines: [...figure.querySelectorAll('.own .line')].map(line => line.getAttribute('class')),
        }))"""
    )
    return {
        "subject": entry.get_attribute("data-subject"),
        "chip": page.locator(".chip").inner_text(),
        "plots": plots,
        "errors": heard["errors"],
    }


def site(browser, words):
    page, heard = browser.open()
    contents = page.locator("#mdbook-sidebar a[href]").all_inner_texts()
    page.locator("#mdbook-search-toggle").click()
    # Each key searches, once the index is loaded.
    page.locator("#mdbook-searchbar").press_sequentially(words)
    page.get_by_text(f"for '{words}':").wait_for()
    results = page.locator("#mdbook-searchresults a")
    found = results.all_inner_texts()
    results.first.click()
    page.wait_for_url("**/docs/**")
    facts = {"contents": contents, "found": found, "heading": page.locator("main h1").inner_text()}
    return facts | heard


def pdf_facts(path):
    with pypdfium2.PdfDocument(path) as document:
        texts = [page.get_textpage().get_text_range() for page in document]
        return [len(document), document[0].get_size(), "\n".join(texts)]


def main():
    command, report = sys.argv[1:3]
    if command == "pdf":
        json.dump(pdf_facts(report), sys.stdout)
        return
    with sync_playwright() as playwright:
        browser = Browser(playwright, "file://" + os.path.abspath(report))
        if command == "page":
            facts = page_facts(browser, sys.argv[3])
        elif command == "site":
            facts = site(browser, sys.argv[3])
        else:
            facts = {"use": use, "device": device}[command](browser)
        browser.chromium.close()
    json.dump(facts, sys.stdout)


main()
