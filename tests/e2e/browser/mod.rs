//! Reports and the manual in Chromium: loading, screenshots, paper, controls, search. `scripts/browser.py` drives the
//! browser and prints facts; what they must be is here.

mod controls;
mod facts;
mod manual;
mod mlflow;
mod perfetto;
mod reports;

use std::collections::BTreeSet;

use self::{
    facts::{BoxOf, Image, Page, Section},
    reports::Report,
};

/// Limits of a report: size, and time until something is visible.
const LARGEST_BYTES: u64 = 2_000_000;
const LONGEST_PAINT_MS: f64 = 1000.0;

/// What a report must have beside the sections of every report.
struct Expected<'a> {
    sections: &'a [&'a str],
    drawings: usize,
    tables: usize,
    /// Text that is on the first printed page.
    text: &'a str,
    is_interactive: bool,
}

fn assert_image(name: &str, image: &Image, is_dark: bool) {
    let brightness = image.background.iter().map(|part| u32::from(*part)).max();
    assert_eq!(brightness < Some(64), is_dark, "{name}: {image:?}");
    // Text alone has dozens of shades; an empty page has one.
    assert!(image.colours >= 50, "{name}: {image:?}");
    // Text covers some per cent of the page; a background in two colours covers it.
    assert!((0.005..0.5).contains(&image.drawn), "{name}: {image:?}");
}

fn assert_sections(sections: &[Section], expected: &Expected<'_>) {
    let ids: BTreeSet<_> = sections.iter().map(|section| section.id.as_str()).collect();
    assert_eq!(ids.len(), sections.len(), "an id twice: {sections:?}");
    for id in expected.sections {
        assert!(ids.contains(id), "no section {id}: {ids:?}");
    }
    for section in sections {
        // Every link has its section with this heading and content below it.
        assert_eq!(section.heading.as_ref(), Some(&section.link));
        assert!(section.is_visible && section.height > 40.0, "{section:?}");
    }
}

fn assert_boxes(boxes: &[BoxOf], least: usize) {
    assert!(boxes.len() >= least, "{} of {least}", boxes.len());
    for area in boxes {
        let is_large = area.width >= 100.0 && area.height >= 20.0;
        assert!(is_large && area.is_visible, "{area:?}");
    }
}

/// Opens a report in every way and asserts what holds for each report.
#[track_caller]
fn assert_opens(report: &Report, expected: &Expected<'_>) -> Page {
    let page = report.page();
    assert!(report.bytes() < LARGEST_BYTES, "{} bytes", report.bytes());
    assert_eq!(page.console, [""; 0]);
    assert_eq!(page.errors, [""; 0]);
    // The document itself, and nothing else.
    assert_eq!(page.requests, [report.address()]);
    let policy = "default-src 'none'; style-src 'sha256-";
    assert!(page.policy.starts_with(policy), "{}", page.policy);
    assert!(page.paint_ms < LONGEST_PAINT_MS, "{} ms", page.paint_ms);
    assert!(!page.scrolls_sideways);
    assert_sections(&page.sections, expected);
    assert_boxes(&page.drawings, expected.drawings);
    assert_boxes(&page.tables, expected.tables);
    for area in &page.drawings {
        assert!(area.left >= 0.0 && area.right <= 1100.0, "{area:?}");
    }

    assert_image("light", &page.light, false);
    assert_image("dark", &page.dark, true);
    let size = |image: &Image| (image.width, image.height);
    assert_eq!(size(&page.light), size(&page.dark));
    assert_eq!(page.light.width, 1100);
    assert!(page.light.height >= 600, "{:?}", page.light);

    // Black on white paper, also for readers with a dark browser.
    let (width, height) = page.size_in_points;
    assert!((width - 595.0).abs() < 2.0 && (height - 842.0).abs() < 2.0);
    assert!(page.pdf_bytes > 10_000, "{}", page.pdf_bytes);
    // A screen of this width has at most the content of one page on 1100 pixels.
    let most = page.light.height.div_ceil(550) + 1;
    assert!((1..=most).contains(&page.pages), "{} pages", page.pages);
    assert_eq!(page.print.len() as u64, page.pages);
    for image in &page.print {
        assert_eq!(image.background, [255; 3], "{image:?}");
        assert!(image.drawn < 0.6, "{image:?}");
    }
    assert_image("first page", &page.print[0], false);
    let text = &page.printed_text;
    assert!(text.contains(expected.text), "{}: {text}", expected.text);

    // Without scripts everything is there but the controls.
    assert_eq!(page.buttons > 0, expected.is_interactive);
    let still = &page.without_scripts;
    assert_eq!(still.buttons, 0);
    assert_sections(&still.sections, expected);
    assert_boxes(&still.drawings, expected.drawings);
    assert_boxes(&still.tables, expected.tables);
    assert_eq!(still.drawings.len(), page.drawings.len());
    assert_eq!(still.tables.len(), page.tables.len());
    page
}

#[test]
fn demo_opens_and_obeys() {
    let report = Report::of_demo();
    let expected = Expected {
        sections: &[
            "verdict",
            "quality",
            "facts",
            "time",
            "cpu",
            "memory",
            "processes",
            "tables",
        ],
        drawings: 8,
        tables: 1,
        text: "complete, exit code 0",
        is_interactive: true,
    };
    assert_opens(&report, &expected);
    controls::check(&report);
}

#[test]
fn sixty_four_hosts_open() {
    let report = Report::of_many_hosts(64);
    let expected = Expected {
        sections: &[
            "verdict", "quality", "facts", "time", "cpu", "memory", "nodes", "tables",
        ],
        drawings: 8,
        tables: 2,
        text: "64 nodes",
        is_interactive: true,
    };
    assert_opens(&report, &expected);
}

#[test]
fn gpu_job_opens() {
    let report = Report::of_gpus();
    let expected = Expected {
        sections: &["verdict", "quality", "facts", "gpu", "processes"],
        drawings: 3,
        tables: 1,
        text: "complete, exit code 0",
        is_interactive: true,
    };
    assert_opens(&report, &expected);
    // The second GPU alone, in its own colour.
    let device = report.device();
    assert_eq!(device.errors, [""; 0]);
    assert!(device.subject.ends_with("0000:02:00.0"), "{device:?}");
    assert!(device.chip.contains("GPU 0000:02:00.0"), "{device:?}");
    let utilization = device.plots.iter();
    let mut utilization = utilization.filter(|plot| plot.id == "plot-gpu-utilization");
    let plot = utilization.next().expect("the plot of the utilization");
    assert_eq!(plot.lines, ["line s1"]);
    assert!(report.text().contains("The GPUs computed 4 % of the time"));
}

#[test]
fn run_without_privileges_opens() {
    let report = Report::without_privileges();
    let expected = Expected {
        sections: &[
            "verdict",
            "quality",
            "facts",
            "time",
            "cpu",
            "memory",
            "processes",
        ],
        drawings: 5,
        tables: 1,
        text: "nobody",
        is_interactive: true,
    };
    let page = assert_opens(&report, &expected);
    assert!(
        report.text().contains("no CAP_BPF and CAP_PERFMON"),
        "{:?}",
        page.sections
    );
}

#[test]
fn losses_are_in_the_report() {
    let report = Report::with_losses();
    let expected = Expected {
        sections: &["verdict", "quality", "facts", "processes"],
        drawings: 1,
        tables: 1,
        text: "complete",
        is_interactive: true,
    };
    assert_opens(&report, &expected);
    assert!(report.text().contains("operations lost"), "no loss");
}

#[test]
fn killed_run_opens() {
    let report = Report::of_killed_run();
    let expected = Expected {
        sections: &[
            "verdict",
            "quality",
            "facts",
            "time",
            "cpu",
            "memory",
            "processes",
        ],
        drawings: 5,
        tables: 1,
        text: "running",
        is_interactive: true,
    };
    assert_opens(&report, &expected);
    let text = report.text();
    assert!(text.contains("was killed: at most the last"), "{text}");
}

#[test]
fn run_without_rows_opens() {
    let report = Report::without_rows();
    let expected = Expected {
        sections: &["verdict", "quality"],
        drawings: 0,
        tables: 0,
        text: "No bottleneck found",
        is_interactive: true,
    };
    assert_opens(&report, &expected);
}

#[test]
fn comparison_opens() {
    let report = Report::of_comparison();
    let expected = Expected {
        sections: &["figures", "time"],
        drawings: 2,
        tables: 2,
        text: "One run each",
        is_interactive: false,
    };
    assert_opens(&report, &expected);
}

/// The PDF of the profiler itself, not that of the browser's menu.
#[test]
fn pdf_has_all_sections() {
    let (pages, (width, height), text) = Report::pdf_of_demo();
    assert!((2..=12).contains(&pages), "{pages} pages");
    assert!(
        (width - 595.0).abs() < 2.0 && (height - 842.0).abs() < 2.0,
        "{width} × {height}"
    );
    for section in [
        "Bottleneck",
        "Totals",
        "Thread states",
        "Processes",
        "Data quality",
    ] {
        assert!(text.contains(section), "{section}: {text}");
    }
}
