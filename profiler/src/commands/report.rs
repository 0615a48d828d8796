//! `profiler report`: runs as one HTML file, Markdown, PDF, and drawings as files.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::{ArgGroup, Args, ValueHint};

use super::{
    ClaimOption, TrustOption, find_run::given_or_newest, not_written, own_file, read_runs, write,
};
use crate::{
    analysis::{
        roofline::Sources,
        summary::{Thresholds, ceilings_file},
    },
    charts::{
        Layout,
        file::{self, Appearance},
        png::Painter,
    },
    failure::{Failure, Reason},
    report,
    run_report::{Picture, Report, html, markdown, perfmon_html},
    support::names,
};

/// Arguments of `profiler report`.
#[derive(Args, Debug)]
#[group(skip)]
#[command(group(ArgGroup::new("files").multiple(true)))]
pub struct Arguments {
    /// Run directories, or addresses of runs: s3://BUCKET/PREFIX/RUN, https://HOST/PATH/RUN
    /// [default: the newest run in the output directory]
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    runs: Vec<PathBuf>,
    /// HTML file to write; `-` for stdout [default: report.html, if no other format is requested]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Markdown file to write, with links to the files of --svg or --png
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    md: Option<PathBuf>,
    /// PDF file to write, on A4; needs Chromium or Chrome
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pdf: Option<PathBuf>,
    /// Directory for the plots as SVG files
    #[arg(long, value_name = "DIR", group = "files", value_hint = ValueHint::DirPath)]
    svg: Option<PathBuf>,
    /// Directory for the plots as PNG files
    #[arg(long, value_name = "DIR", group = "files", value_hint = ValueHint::DirPath)]
    png: Option<PathBuf>,
    /// Produce the plots and pages of another program, under its names: SKA SDP's perfmon
    #[arg(long, value_name = "PROGRAM", conflicts_with = "md")]
    like: Option<Like>,
    /// Replace existing files that are not reports
    #[arg(long)]
    force: bool,
    /// Omit command lines and users
    #[arg(long)]
    redact: bool,
    /// File with roofline ceilings, for example of the site; files of `profiler ceilings` are found
    /// without this option
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    ceilings: Option<PathBuf>,
    /// File with the table [report] [default: the files that `profiler config` reads]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustOption,
    #[command(flatten)]
    claim: ClaimOption,
    // Last, because its heading is that of all options after it.
    #[command(flatten)]
    plots: Plots,
}

/// Programs whose plots and pages are known.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Like {
    Perfmon,
}

/// Which plots are written as files, and how.
#[derive(Args, Debug)]
#[command(next_help_heading = "Plots as files (--svg, --png)")]
struct Plots {
    /// Write only this plot; repeatable; an unknown name lists all plots
    #[arg(long = "plot", requires = "files", value_name = "NAME")]
    names: Vec<String>,
    /// Width in mm: 180 for a full page, 85 for a column in most journals
    #[arg(long, requires = "files", value_name = "MM", default_value_t = 180.0, value_parser = number(40.0, 1000.0))]
    width: f64,
    /// Height in mm of plots with a value axis
    #[arg(long, requires = "files", value_name = "MM", default_value_t = 45.0, value_parser = number(15.0, 1000.0))]
    height: f64,
    /// Font family
    #[arg(long, requires = "files", value_name = "FAMILY", default_value = file::FONT)]
    font: String,
    /// Text size in points
    #[arg(long, requires = "files", value_name = "PT", default_value_t = 8.0, value_parser = number(3.0, 48.0))]
    font_size: f64,
    /// Resolution of PNG files in pixels per inch
    #[arg(long, requires = "files", value_name = "N", default_value_t = 200.0, value_parser = number(50.0f32, 1200.0))]
    dpi: f32,
    /// Omit the title above the plot, for papers with captions
    #[arg(long, requires = "files")]
    no_title: bool,
}

/// Parses a number within limits.
fn number<T: Copy + PartialOrd + std::str::FromStr + std::fmt::Display + Send + Sync + 'static>(
    least: T,
    most: T,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("not a number from {least} to {most}")),
    }
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When a run cannot be read, or a file not be written.
    pub fn run(&self) -> Result<u8, Failure> {
        // Before the runs are read, which can take long.
        let html_file = self.html_file();
        for path in [&html_file, &self.md, &self.pdf].into_iter().flatten() {
            own_file::check(path, self.force)?;
        }
        if self.claim.is_taken()? {
            return Ok(0);
        }
        let runs = given_or_newest(&self.runs)?;
        let thresholds = Thresholds::read(self.config.as_deref())?;
        let site = ceilings_file(self.config.as_deref())?;
        let files = self.ceilings.iter().chain(&site).map(PathBuf::as_path);
        let sources = Sources::read(files)?;
        let reports = read_runs(&runs, self.trust, |run| match self.like {
            None => Report::new(run, &thresholds, &sources, self.redact),
            Some(Like::Perfmon) => Report::like_perfmon(run, &thresholds, self.redact),
        })?;
        let html = |reports: &[Report]| match self.like {
            None => html(reports),
            Some(Like::Perfmon) => perfmon_html(reports, &self.plots.appearance()),
        };
        self.plots.check(&reports)?;
        let mut pictures = vec![Vec::new(); reports.len()];
        if let Some(directory) = &self.png {
            let painter = Painter::with_installed_fonts();
            self.plots
                .write(&reports, directory, "png", &mut pictures, |svg| {
                    painter
                        .png(&svg, self.plots.dpi)
                        .map_err(|why| Failure::new(Reason::Output, why))
                })?;
        }
        if let Some(directory) = &self.svg {
            pictures.iter_mut().for_each(Vec::clear);
            self.plots
                .write(&reports, directory, "svg", &mut pictures, |svg| {
                    Ok(svg.into_bytes())
                })?;
        }
        if let Some(path) = &self.md {
            let from = path.parent().unwrap_or(Path::new(""));
            for (_, picture) in pictures.iter_mut().flatten() {
                *picture = relative(picture, from);
            }
            let text = own_file::MARKDOWN.to_owned() + &markdown(&reports, &pictures);
            write(path, text.as_bytes())?;
        }
        if let Some(path) = &self.pdf {
            pdf(&html(&reports), path)?;
            report!("{}", path.display());
        }
        if let Some(path) = html_file {
            write(&path, html(&reports).as_bytes())?;
        }
        Ok(0)
    }

    /// The HTML file, if one is to be written.
    fn html_file(&self) -> Option<PathBuf> {
        let others = [&self.md, &self.pdf, &self.svg, &self.png];
        let by_default = others.iter().all(|path| path.is_none());
        let default = by_default.then(|| PathBuf::from("report.html"));
        self.output.clone().or(default)
    }
}

/// Names of Chromium and Chrome.
const BROWSERS: [&str; 6] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome-headless-shell",
    "chrome",
];

/// Whether one of them is in PATH.
pub(super) fn has_browser() -> bool {
    let directories = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&directories).any(|directory| {
        let mut names = BROWSERS.iter().map(|name| directory.join(name));
        names.any(|path| path.is_file())
    })
}

/// Time that a browser has; a report takes it seconds.
const BROWSER_TIMEOUT: Duration = Duration::from_secs(120);

/// Waits for a process, and kills it after the timeout.
fn ends_in_time(mut child: Child) -> std::io::Result<bool> {
    let deadline = Instant::now() + BROWSER_TIMEOUT;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// Prints a document with a browser.
fn pdf(html: &str, path: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| not_written(path, &error);
    let directory = tempfile::tempdir().map_err(failed)?;
    let document = directory.path().join("report.html");
    fs::write(&document, html).map_err(failed)?;
    let printed = directory.path().join("report.pdf");
    for browser in BROWSERS {
        let mut command = Command::new(browser);
        command
            .args(["--headless", "--disable-gpu", "--no-pdf-header-footer"])
            .args(["--no-first-run", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-sync"])
            .arg(format!(
                "--user-data-dir={}",
                directory.path().join("browser").display()
            ))
            .arg(format!("--print-to-pdf={}", printed.display()));
        if rustix::process::geteuid().is_root() {
            // The sandbox of the browser refuses root. The document has no requests and only our script.
            command.arg("--no-sandbox");
        }
        command.arg(format!("file://{}", document.display()));
        let messages = directory.path().join("messages");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&messages).map_err(failed)?);
        let child = match command.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            child => child.map_err(failed)?,
        };
        let in_time = ends_in_time(child).map_err(failed)?;
        if let (true, Ok(mut content)) = (in_time, fs::read(&printed)) {
            content.extend_from_slice(own_file::PDF.as_bytes());
            return fs::write(path, content).map_err(failed);
        }
        let messages = fs::read(&messages).unwrap_or_default();
        let messages = String::from_utf8_lossy(&messages);
        let why = match messages.lines().last() {
            _ if !in_time => format!("it did not end within {} s", BROWSER_TIMEOUT.as_secs()),
            last => last.unwrap_or_default().to_owned(),
        };
        let why = format!("{browser} wrote no PDF: {why}");
        return Err(Failure::new(Reason::Output, why));
    }
    Err(Failure::new(
        Reason::Output,
        "--pdf needs Chromium or Chrome in PATH; or open the HTML report in any browser and print it",
    ))
}

/// A path as seen from a directory: below it without its name, otherwise absolute.
fn relative(path: &Path, from: &Path) -> PathBuf {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (path, from) = (absolute(path), absolute(from));
    path.strip_prefix(from).map_or(path.clone(), Path::to_owned)
}

impl Plots {
    fn is_wanted(&self, figure: &Picture) -> bool {
        self.names.is_empty() || self.names.contains(&figure.name)
    }

    /// Refuses names that no run has.
    fn check(&self, reports: &[Report]) -> Result<(), Failure> {
        let known = || reports.iter().flat_map(Report::pictures);
        for name in &self.names {
            if known().any(|figure| figure.name == *name) {
                continue;
            }
            let mut known: Vec<_> = known().map(|figure| figure.name.as_str()).collect();
            known.sort_unstable();
            let message = names::unknown("plot", name, known);
            return Err(Failure::new(Reason::Usage, message));
        }
        Ok(())
    }

    fn appearance(&self) -> Appearance {
        Appearance {
            layout: Layout {
                width: file::pixels(self.width),
                height: file::pixels(self.height),
                text: file::points(self.font_size),
            },
            font: self.font.clone(),
            with_title: !self.no_title,
        }
    }

    /// Writes the plots into a directory, with several runs into one for each. Adds title and path of
    /// each to `pictures`.
    fn write(
        &self,
        reports: &[Report],
        directory: &Path,
        extension: &str,
        pictures: &mut [Vec<(String, PathBuf)>],
        encode: impl Fn(String) -> Result<Vec<u8>, Failure>,
    ) -> Result<(), Failure> {
        let appearance = self.appearance();
        let mut count = 0;
        for (number, (report, pictures)) in (1..).zip(reports.iter().zip(pictures)) {
            // As in the names of the elements of the HTML: ids of runs need not be different.
            let directory = match reports {
                [_] => directory.to_owned(),
                _ => directory.join(format!("run{number}")),
            };
            fs::create_dir_all(&directory).map_err(|error| not_written(&directory, &error))?;
            for figure in report.pictures().filter(|figure| self.is_wanted(figure)) {
                let svg = file::svg(&*figure.chart, &figure.title, &report.frame, &appearance);
                let path = directory.join(format!("{}.{extension}", figure.name));
                fs::write(&path, encode(svg)?).map_err(|error| not_written(&path, &error))?;
                pictures.push((figure.title.clone(), path));
                count += 1;
            }
        }
        report!("{count} plots in {}", directory.display());
        Ok(())
    }
}
