//! Zoom, cursor, values and tables of a report.

use std::fmt::Write as _;

use super::{
    facts::{Csv, Data, Table, TableRow, Tooltip, Use, Views},
    reports::Report,
};

/// Area of the values in a drawing, in its units.
const LEFT: f64 = 64.0;
const WIDTH: f64 = 688.0;

/// Asserts that all drawings show the same part of the run, 0 to 1.
#[track_caller]
fn assert_shown(views: &Views, from: f64, to: f64) {
    assert!(views.len() >= 8, "{} drawings", views.len());
    // A mouse is at whole pixels, and a drawing is about 1000 pixels wide.
    let tolerance = WIDTH * 0.003;
    for &(x, width) in views {
        let start = (x - LEFT - from * WIDTH).abs();
        let length = (width - (to - from) * WIDTH).abs();
        assert!(
            start <= tolerance && length <= tolerance,
            "{x} + {width} are not {from} to {to}"
        );
        assert_eq!((x, width), views[0]);
    }
}

/// A number with prefix and unit, and half of its last digit.
fn parsed(text: &str, unit: &str) -> (f64, f64) {
    let (number, prefix) = text.split_once(' ').unwrap_or((text, ""));
    let number = number.trim_end_matches("/s");
    let decimals = number.split_once('.').map_or(0, |(_, rest)| rest.len());
    let power = |letter: &str| " kMGTP".find(letter).unwrap_or(0);
    let factor = if unit.starts_with("bytes") {
        1024_f64.powf(power(&prefix.replace('K', "k")[..prefix.len().min(1)]) as f64)
    } else {
        1000_f64.powf(power(&prefix[..prefix.len().min(1)]) as f64)
    };
    let value: f64 = number.parse().unwrap_or_else(|_| panic!("{text:?}"));
    (value * factor, 0.5 * factor / 10_f64.powf(decimals as f64))
}

/// Number of the interval at a share of the run.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and the number of intervals"
)]
fn interval(share: f64, of: &Use) -> usize {
    (share.clamp(0.0, 1.0) * of.intervals as f64).floor() as usize
}

/// Asserts that a tooltip has the time under the mouse, and all values of that time.
#[track_caller]
fn assert_tooltip(tooltip: &Tooltip, of: &Use, from: f64, to: f64) {
    let text = tooltip.text.as_deref().expect("a tooltip");
    let mut lines = text.lines();
    let time = lines.next().and_then(|line| line.strip_suffix(" s"));
    let time: f64 = time.expect("a time").parse().expect("a number");
    let at = of.seconds * (from + tooltip.share * (to - from));
    // Two digits, and a pixel.
    assert!(
        (time - at).abs() < 0.005 + of.seconds * 0.002,
        "{time}, not {at}"
    );
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), of.data.lines.len(), "{text}");
    // The interval before or after it, if the mouse is at their boundary.
    let near =
        [-0.001, 0.001].map(|more| interval(at / of.seconds + more, of).min(of.intervals - 1));
    for (line, (label, values, ..)) in lines.iter().zip(&of.data.lines) {
        let (name, shown) = line.split_once(": ").expect("a label");
        assert_eq!(name, label);
        let found = near.iter().any(|index| match values[*index] {
            None => shown == "–",
            Some(value) => {
                let (read, rounding) = parsed(shown, &of.data.unit);
                (read - value).abs() <= rounding * 1.001
            }
        });
        assert!(found, "{line} at {near:?} of {values:?}");
    }
}

/// Asserts that a file has the values between two shares of the run, and no others.
#[track_caller]
fn assert_csv(csv: &Csv, of: &Use, from: f64, to: f64) {
    assert_eq!(csv.name, format!("{}.csv", of.figure));
    let Data { unit, lines } = &of.data;
    let mut heading = String::from("seconds");
    for (label, ..) in lines {
        let _ = write!(heading, ",\"{label} ({unit})\"");
    }
    let mut rows = csv.text.lines();
    assert_eq!(rows.next(), Some(heading.as_str()));
    let count = of.intervals as f64;
    let rows: Vec<_> = rows.collect();
    // An end of the range can be a pixel beside the boundary of an interval.
    let expected = (to - from) * count;
    assert!(
        (rows.len() as f64 - expected).abs() <= 3.0,
        "{}",
        rows.len()
    );
    for row in rows {
        let mut cells = row.split(',');
        let time: f64 = cells
            .next()
            .and_then(|cell| cell.parse().ok())
            .expect("a time");
        let share = time / of.seconds;
        let length = 1.0 / count;
        assert!(share > from - length && share < to + length, "{row}");
        let index = interval(share, of);
        let cells: Vec<Option<f64>> = cells.map(|cell| cell.parse().ok()).collect();
        let expected: Vec<_> = lines.iter().map(|(_, values, ..)| values[index]).collect();
        assert_eq!(cells, expected, "{row}");
    }
}

/// A cell as a number: `1.5 s`, `2 min 3.0 s`, `28.6 MiB`; nothing for text.
fn quantity(cell: &str) -> Option<f64> {
    let mut words = cell.split_whitespace().peekable();
    let mut sum = None;
    while let Some(word) = words.next() {
        let number: f64 = word.parse().ok()?;
        let factor = match words.next_if(|unit| unit.parse::<f64>().is_err()) {
            None | Some("s" | "B") => 1.0,
            Some("ns") => 1e-9,
            Some("µs") => 1e-6,
            Some("ms") => 1e-3,
            Some("min") => 60.0,
            Some("h") => 3600.0,
            Some("KiB") => 1024.0,
            Some("MiB") => 1024.0 * 1024.0,
            Some("GiB") => 1024.0 * 1024.0 * 1024.0,
            Some(_) => return None,
        };
        sum = Some(sum.unwrap_or(0.0) + number * factor);
    }
    sum
}

/// Asserts that a click on each heading sorts its column, and a second one reverses it.
fn assert_sorts(table: &Table) {
    assert_eq!(table.sorted.len(), 2 * table.headings.len());
    for (number, sorted) in table.sorted.iter().enumerate() {
        let heading = &table.headings[sorted.column];
        let order = ["descending", "ascending"][number % 2];
        assert_eq!(sorted.order.as_deref(), Some(order), "{heading}");
        let mut cells = sorted.cells.clone();
        if order == "descending" {
            cells.reverse();
        }
        let mut same: Vec<_> = table
            .rows
            .iter()
            .map(|row| &row.cells[sorted.column])
            .collect();
        let mut still: Vec<_> = cells.iter().collect();
        same.sort();
        still.sort();
        assert_eq!(same, still, "{heading}: other cells");
        let numbers: Option<Vec<f64>> = cells.iter().map(|cell| quantity(cell)).collect();
        if let Some(numbers) = numbers {
            assert!(numbers.is_sorted(), "{heading}: {cells:?}");
        } else if cells
            .iter()
            .all(|cell| cell.bytes().all(|byte| byte.is_ascii_lowercase()))
        {
            assert!(cells.is_sorted(), "{heading}: {cells:?}");
        }
    }
}

/// Asserts that exactly the rows with the word are shown while it is searched.
fn assert_searches(table: &Table) {
    let (Some(searched), Some(cleared)) = (&table.searched, &table.cleared) else {
        assert!(table.rows.len() <= 4, "no search: {:?}", table.headings);
        return;
    };
    let word = table.word.to_lowercase();
    let has_word = |row: &TableRow| {
        let mut cells = row.cells.iter();
        cells.any(|cell| cell.to_lowercase().contains(&word))
    };
    assert!(searched.iter().any(has_word), "{word}");
    for row in searched {
        assert_eq!(row.hidden, !has_word(row), "{word}: {row:?}");
    }
    assert!(cleared.iter().all(|row| !row.hidden));
    assert_eq!(cleared.len(), table.rows.len());
}

/// Asserts that a selected process is shown alone.
fn assert_selects(of: &Use) {
    let selection = &of.selection;
    let pid = selection.subject.split(' ').nth(2).expect("a pid");
    let chip = selection.during.chip.as_deref().expect("a button");
    assert!(chip.starts_with(&format!("process {pid}, ")), "{chip}");
    assert_eq!(selection.during.rows, 1);
    assert!(selection.during.filtered >= 1, "{selection:?}");
    // CPUs of the node, for example.
    assert!(selection.during.hidden >= 1, "{selection:?}");
    let after = &selection.after;
    assert_eq!((&after.chip, after.filtered, after.hidden), (&None, 0, 0));
    assert!(after.rows > 1, "{after:?}");
    // The saved values are those of the process.
    let mut rows = selection.csv.text.lines();
    let heading = rows.next().expect("a heading");
    let shown: Vec<_> = of
        .data
        .lines
        .iter()
        .filter(|(_, _, figure, _)| selection.figures.contains_key(figure))
        .collect();
    assert_eq!(heading.matches(',').count(), shown.len(), "{heading}");
    let rows: Vec<&str> = rows.collect();
    for (column, (label, _, figure, _)) in shown.into_iter().enumerate() {
        let cell = |row: &&str| {
            row.split(',')
                .nth(column + 1)
                .and_then(|cell| cell.parse().ok())
        };
        let cells: Vec<Option<f64>> = rows.iter().map(cell).collect();
        assert_eq!(cells, selection.figures[figure], "{label}");
    }
}

fn table<'a>(of: &'a Use, heading: &str) -> &'a Table {
    let mut tables = of.tables.iter();
    let table = tables.find(|table| table.headings.iter().any(|name| name == heading));
    table.unwrap_or_else(|| panic!("no table with {heading}"))
}

/// Uses all controls of a report of one host, whose run took less than a minute.
pub fn check(report: &Report) {
    let of = report.used();
    assert!(of.intervals >= 20 && of.seconds < 60.0, "{of:?}");

    assert_shown(&of.whole, 0.0, 1.0);
    for tooltip in &of.tooltips {
        assert_tooltip(tooltip, &of, 0.0, 1.0);
    }
    assert_csv(&of.whole_csv, &of, 0.0, 1.0);

    assert_shown(&of.dragged, 0.25, 0.75);
    assert_tooltip(&of.dragged_tooltip, &of, 0.25, 0.75);
    assert_csv(&of.dragged_csv, &of, 0.25, 0.75);
    assert!(of.dragged_csv.text.len() < of.whole_csv.text.len());

    assert_shown(&of.keys["Escape"], 0.0, 1.0);
    assert_shown(&of.keys["+"], 0.25, 0.75);
    assert_shown(&of.keys["ArrowRight"], 0.375, 0.875);
    assert_shown(&of.keys["ArrowLeft"], 0.25, 0.75);
    assert_shown(&of.keys["-"], 0.0, 1.0);

    assert_shown(&of.dragged_back, 0.25, 0.75);
    // It changes neither the drawings nor what the cursor means.
    assert_eq!(of.too_short, of.dragged_back);
    assert_tooltip(&of.too_short_tooltip, &of, 0.25, 0.75);
    assert_shown(&of.reset, 0.0, 1.0);
    assert!(of.tip_is_hidden);

    assert_selects(&of);
    for table in &of.tables {
        assert_sorts(table);
        assert_searches(table);
    }
    let processes = table(&of, "pid");
    let cpu = processes.rows.iter().map(|row| quantity(&row.cells[0]));
    assert!(cpu.flatten().any(|seconds| seconds > 0.0), "{processes:?}");
    assert!(processes.searched.is_some() && table(&of, "source").rows.len() > 1);

    assert_eq!(of.console, [""; 0]);
    assert_eq!(of.errors, [""; 0]);
    // A file that is saved comes from the page itself.
    let others = of
        .requests
        .iter()
        .filter(|address| !address.starts_with("blob:"));
    assert_eq!(others.collect::<Vec<_>>(), [&report.address()]);
}
