// Makes the drawings of a report interactive. Without it, everything is readable.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 64, WIDTH = 688, RIGHT = LEFT + WIDTH;

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    Object.assign(made, attributes);
    made.append(...children);
    return made;
  };
  const shape = (name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  const digits = value => Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2);
  const prefixed = (value, base, prefixes) => {
    let index = 0;
    while (Math.abs(value) >= base && index < prefixes.length - 1) { value /= base; index += 1; }
    return [value, prefixes[index]];
  };
  const format = (value, unit) => {
    if (value === null) return "–";
    const [symbol, per] = unit.split("/");
    const rate = per ? "/" + per : "";
    if (symbol === "bytes") {
      const [scaled, prefix] = prefixed(value, 1024, ["", "Ki", "Mi", "Gi", "Ti", "Pi"]);
      return digits(scaled) + " " + prefix + "B" + rate;
    }
    if (symbol === "%") return value.toFixed(1) + " %";
    if (symbol === "s" && rate) return value.toFixed(2);
    const [scaled, prefix] = prefixed(value, 1000, ["", "k", "M", "G", "T", "P"]);
    return (digits(scaled) + " " + prefix + (symbol === "1" ? "" : symbol)).trim() + rate;
  };
  const clock = (time, seconds) => {
    if (seconds < 60) return time.toFixed(2) + " s";
    const part = value => String(Math.floor(value)).padStart(2, "0");
    return Math.floor(time / 3600) + ":" + part(time / 60 % 60) + ":" + part(time % 60);
  };

  const tip = element("div", { className: "tip", hidden: true });
  tip.setAttribute("role", "status");
  document.body.append(tip);

  // A run: all its drawings have the same time.
  const interactive = article => {
    const seconds = Number(article.dataset.seconds);
    const intervals = Number(article.dataset.intervals);
    // The visible part of the run, 0 to 1.
    let from = 0, to = 1;

    const charts = [...article.querySelectorAll("svg.chart")].map(svg => {
      const figure = svg.closest("figure");
      const data = figure.querySelector("script.data");
      return {
        svg, figure,
        view: svg.querySelector(".view"),
        times: svg.querySelector(".times"),
        lanes: [...svg.querySelectorAll(".lane")],
        data: data && JSON.parse(data.textContent),
        height: svg.viewBox.baseVal.height,
      };
    });

    // What is selected: its values are shown instead of those of the whole run.
    const subjects = JSON.parse(article.querySelector("script.subjects").textContent);
    let selected = null;
    const shown = ({ data }) => {
      const figures = subjects[selected]?.figures;
      const lines = data?.lines ?? [];
      if (!figures) return lines;
      const isShown = ([, , figure, subject]) => figures[figure] && (!subject || subject === selected);
      return lines.flatMap(line => isShown(line) ? [[line[0], figures[line[2]], line[2]]] : []);
    };
    const chip = element("button", { type: "button", className: "chip", hidden: true, title: "Show everything" });
    chip.addEventListener("click", () => select(null));
    article.append(chip);
    const axis = (chart, max) => {
      const group = shape("g", { class: "own" });
      const bottom = chart.height - 18, scale = bottom - 6;
      for (const part of [0, .5, 1]) {
        const y = bottom - part * scale / 1.04;
        const label = shape("text", { class: "tick", x: LEFT - 5, y, dy: 3, "text-anchor": "end" });
        label.textContent = format(part * max, chart.data.unit);
        group.append(shape("line", { class: "grid", x1: LEFT, x2: RIGHT, y1: y, y2: y }), label);
      }
      return group;
    };
    const draw = (chart, lines) => {
      const max = Math.max(...lines.flatMap(([, values]) => values.map(value => value ?? 0))) || 1;
      const bottom = chart.height - 18, scale = (bottom - 6) / 1.04;
      const group = shape("g", { class: "own" });
      for (const [label, values] of lines) {
        let path = "", open = false;
        values.forEach((value, index) => {
          if (value === null) { open = false; return; }
          const x = LEFT + (index + .5) / values.length * WIDTH;
          path += `${open ? "L" : "M"}${x.toFixed(1)} ${(bottom - value / max * scale).toFixed(1)}`;
          if (!open) path += "h.5";
          open = true;
        });
        const number = chart.data.lines.findIndex(([name]) => name === label);
        group.append(shape("path", { class: `line s${number % 8}`, d: path }));
      }
      chart.view.append(group);
      chart.svg.prepend(axis(chart, max));
    };
    const select = name => {
      selected = name !== selected && subjects[name] ? name : null;
      const subject = subjects[selected];
      chip.hidden = !subject;
      chip.textContent = subject ? `${subject.label} ✕` : "";
      for (const chart of charts) {
        chart.svg.querySelectorAll(".own").forEach(own => own.remove());
        const lines = subject?.figures && chart.data ? shown(chart) : [];
        chart.figure.classList.toggle("filtered", lines.length > 0);
        const isAbout = lines.length > 0 || chart.svg.querySelector("[data-subject]");
        chart.figure.classList.toggle("off", Boolean(subject?.figures) && !isAbout);
        if (lines.length > 0) draw(chart, lines);
      }
      for (const part of article.querySelectorAll("[data-subject]")) {
        // Only tables in which the selected one is are filtered.
        const rows = part.closest("tbody");
        const applies = !rows || [...rows.rows].some(row => row.dataset.subject === selected);
        part.classList.toggle("dim", Boolean(subject) && applies && part.dataset.subject !== selected);
      }
      if (subject?.times) {
        const begin = Math.min(...subject.times.map(([begin]) => begin)), end = Math.max(...subject.times.map(([, end]) => end));
        zoom(begin, Math.max(end, begin + 2 / intervals));
      }
    };
    for (const part of article.querySelectorAll("[data-subject]")) {
      if (!subjects[part.dataset.subject]) continue;
      part.classList.add("choice");
      if (part.closest("svg.chart")) continue;
      part.tabIndex = 0;
      part.addEventListener("click", () => select(part.dataset.subject));
      part.addEventListener("keydown", event => { if (event.key === "Enter") select(part.dataset.subject); });
    }

    // Zoom, the same for all drawings.
    const step = span => {
      const steps = [.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400];
      return steps.find(step => span / step <= 8) || span / 8;
    };
    function zoom(begin, end) {
      const [first, last] = [Math.max(0, begin), Math.min(1, end)];
      if (last - first < 2 / intervals) return;
      [from, to] = [first, last];
      const width = to - from;
      for (const { view, times, lanes, height } of charts) {
        view.setAttribute("viewBox", `${LEFT + from * WIDTH} 0 ${width * WIDTH} ${height}`);
        const place = x => LEFT + (x - LEFT - from * WIDTH) / width;
        for (const lane of lanes) {
          lane.dataset.x ??= lane.getAttribute("x");
          const x = place(Number(lane.dataset.x));
          lane.setAttribute("x", x);
          lane.setAttribute("visibility", x < LEFT || x > RIGHT ? "hidden" : "visible");
        }
        if (from === 0 && to === 1) {
          times.replaceChildren(...(times.original ?? times.childNodes));
          continue;
        }
        times.original ??= [...times.childNodes];
        const every = step(width * seconds);
        const ticks = [];
        for (let time = Math.ceil(from * seconds / every) * every; time <= to * seconds; time += every) {
          const x = LEFT + (time / seconds - from) / width * WIDTH;
          // The last label is not cut off.
          const at = x > RIGHT - 12 ? { x: RIGHT + 8, "text-anchor": "end" } : { x, "text-anchor": "middle" };
          const label = shape("text", { class: "tick", y: height - 4, ...at });
          label.textContent = clock(time, seconds);
          ticks.push(shape("line", { class: "axis", x1: x, x2: x, y1: height - 18, y2: height - 15 }), label);
        }
        times.replaceChildren(...ticks);
      }
      reset.hidden = from === 0 && to === 1;
    }
    const reset = element("button", { type: "button", className: "reset", textContent: "Show the whole run", hidden: true });
    reset.addEventListener("click", () => zoom(0, 1));
    article.append(reset);

    // A cursor in all drawings and the values at it.
    const hide = () => {
      tip.hidden = true;
      for (const { cursor } of charts) cursor?.setAttribute("visibility", "hidden");
    };
    const show = (chart, position, x, y) => {
      for (const other of charts) {
        other.cursor ??= other.svg.appendChild(shape("line", { class: "cursor", y1: 6, y2: other.height - 18 }));
        const at = LEFT + (position - from) / (to - from) * WIDTH;
        other.cursor.setAttribute("x1", at);
        other.cursor.setAttribute("x2", at);
        other.cursor.setAttribute("visibility", "visible");
      }
      const rows = [element("b", { textContent: clock(position * seconds, seconds) })];
      const all = shown(chart);
      // Of a heat map only the row under the pointer.
      const box = chart.svg.getBoundingClientRect();
      const row = Math.floor(((y - box.top) / box.height * chart.height - 6) / (chart.height - 24) * all.length);
      for (const [label, values] of chart.data?.rows ? all.slice(row, row + 1) : all) {
        const index = Math.min(values.length - 1, Math.floor(position * values.length));
        rows.push(element("br"), `${label}: ${format(values[index], chart.data.unit)}`);
      }
      tip.replaceChildren(...rows);
      tip.hidden = false;
      tip.style.left = Math.min(x + 14, innerWidth - tip.offsetWidth - 8) + "px";
      tip.style.top = Math.min(y + 14, innerHeight - tip.offsetHeight - 8) + "px";
    };
    const positionAt = (svg, event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * 760;
      return x < LEFT || x > RIGHT ? null : from + (x - LEFT) / WIDTH * (to - from);
    };
    for (const chart of charts) {
      const { svg } = chart;
      let begin = null;
      svg.tabIndex = 0;
      svg.addEventListener("pointermove", event => {
        const position = positionAt(svg, event);
        if (position === null) return hide();
        show(chart, position, event.clientX, event.clientY);
      });
      svg.addEventListener("pointerleave", hide);
      svg.addEventListener("pointerdown", event => { begin = positionAt(svg, event); event.preventDefault(); svg.focus({ preventScroll: true }); });
      svg.addEventListener("pointerup", event => {
        const end = positionAt(svg, event);
        if (begin !== null && end !== null && Math.abs(end - begin) > .005 * (to - from)) {
          zoom(Math.min(begin, end), Math.max(begin, end));
        } else {
          const name = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-subject]")?.dataset.subject;
          if (name) select(name);
        }
        begin = null;
      });
      svg.addEventListener("dblclick", () => zoom(0, 1));
      svg.addEventListener("keydown", event => {
        const width = to - from;
        const moves = {
          ArrowLeft: () => zoom(Math.max(0, from - width / 4), Math.max(0, from - width / 4) + width),
          ArrowRight: () => zoom(Math.min(1, to + width / 4) - width, Math.min(1, to + width / 4)),
          "+": () => zoom(from + width / 4, to - width / 4),
          "-": () => zoom(from - width / 2, to + width / 2),
          Escape: () => { zoom(0, 1); select(null); },
        };
        if (moves[event.key]) { event.preventDefault(); moves[event.key](); }
      });
      if (chart.data) {
        const button = element("button", { type: "button", className: "csv", textContent: "CSV" });
        button.addEventListener("click", () => {
          const columns = shown(chart);
          const count = columns[0][1].length;
          const [first, last] = [Math.floor(from * count), Math.ceil(to * count)];
          const quoted = text => `"${text.replaceAll('"', '""')}"`;
          const lines = [["seconds", ...columns.map(([label]) => quoted(`${label} (${chart.data.unit})`))].join(",")];
          for (let index = first; index < last; index += 1) {
            const values = columns.map(([, values]) => values[index] ?? "");
            lines.push([((index + .5) / count * seconds).toFixed(6), ...values].join(","));
          }
          const url = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
          const link = element("a", { href: url, download: chart.figure.id + ".csv" });
          link.click();
          URL.revokeObjectURL(url);
        });
        chart.figure.querySelector("figcaption").append(" ", button);
      }
    }
  };
  document.querySelectorAll("article").forEach(interactive);

  // Tables: sorted by a click on a heading, rows found by text.
  const UNITS = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, k: 1e3, M: 1e6, G: 1e9 };
  const number = text => {
    let sum = 0, found = false;
    for (const [, value, unit] of text.matchAll(/([-+]?[\d.]+)\s*([^\d\s]*)/g)) {
      sum += Number(value) * (UNITS[unit] ?? 1);
      found = true;
    }
    return found ? sum : -Infinity;
  };
  for (const table of document.querySelectorAll("table")) {
    const body = table.tBodies[0];
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      const button = element("button", { type: "button", textContent: heading.textContent });
      button.addEventListener("click", () => {
        const descending = heading.getAttribute("aria-sort") !== "descending";
        headings.forEach(other => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
        const text = row => row.cells[column].textContent;
        const order = (a, b) => {
          const more = column === headings.length - 1 ? 0 : number(text(b)) - number(text(a));
          // Texts without a number, or with the same.
          return more || text(b).localeCompare(text(a));
        };
        body.append(...[...body.rows].sort((a, b) => (descending ? 1 : -1) * order(a, b)));
      });
      heading.replaceChildren(button);
    });
    if (body.rows.length > 4) {
      const search = element("input", { type: "search", placeholder: "search" });
      search.setAttribute("aria-label", "search in the table");
      search.addEventListener("input", () => {
        for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(search.value.toLowerCase());
      });
      table.parentElement.before(search);
    }
  }
})();
