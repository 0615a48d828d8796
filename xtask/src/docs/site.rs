//! The manual as a site, made by mdBook. Files keep their places, so links need no change.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    links::{self, Page},
    manual::Manual,
};
use crate::{
    cargo_tool::CargoTool,
    shell::{self, progress},
    workspace::Workspace,
};

const TOOL: CargoTool = CargoTool {
    name: "mdbook",
    version: "0.5.4",
    checksum: "5f68ffebcd0b9a4eb72aaacc4342bc94e1d63c01893b7c921437f6ef02443699",
};

/// Without preprocessors, which would replace `{{` in scripts and rename README.md, and without a page
/// for missing ones, which would need the address of the site.
const BOOK: &str = r#"[book]
title = "profiler"
language = "en"
src = "source"

[build]
build-dir = "html"
use-default-preprocessors = false

[output.html]
additional-css = ["wide.css"]
no-section-label = true
smart-punctuation = false
input-404 = ""

[output.html.playground]
runnable = false
"#;

/// Tables of six columns need more than mdBook's 750 pixels. Its arrows beside the text would cover it.
const WIDE: &str = ":root { --content-max-width: 1000px; }
.content table { margin-inline: 0; }
.content th { text-align: start; }
.content th, .content td { padding: 3px 10px; vertical-align: top; }
.nav-wide-wrapper { display: none; }
.nav-wrapper { display: block; }
";

/// Builds the site; returns its first page.
///
/// # Errors
///
/// If a link of the pages or of the site leads nowhere, or mdBook cannot be installed or fails.
pub fn build(workspace: &Workspace) -> Result<PathBuf> {
    let manual = Manual::read(&workspace.root)?;
    let program = obtain(workspace)?;
    let directory = workspace.target.join("site");
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", directory.display()));
        }
        _ => {}
    }
    let source = directory.join("source");
    for path in manual.pages.keys().cloned().chain(manual.files()) {
        let copy = source.join(&path);
        fs::create_dir_all(copy.parent().unwrap_or(&source))
            .and_then(|()| fs::copy(workspace.root.join(&path), &copy))
            .with_context(|| format!("copying {path}"))?;
    }
    fs::write(source.join("SUMMARY.md"), manual.summary())?;
    fs::write(directory.join("book.toml"), BOOK)?;
    fs::write(directory.join("wide.css"), WIDE)?;
    shell::run_quietly(Command::new(program).arg("build").arg(&directory))?;
    let html = directory.join("html");
    let mut pages = BTreeMap::new();
    read_pages(&html, Path::new(""), &mut pages)?;
    let broken = links::broken(&html, &pages);
    ensure!(broken.is_empty(), "{}", broken.join("\n"));
    Ok(html.join("index.html"))
}

/// The pinned mdBook.
fn obtain(workspace: &Workspace) -> Result<PathBuf> {
    let program = TOOL.program(workspace, "");
    if shell::is_executable(&program) {
        return Ok(program);
    }
    progress("building mdBook (some minutes the first time)");
    let options = ["--no-default-features", "--features", "search"];
    TOOL.install(workspace, "", &options, &[])
}

/// Reads the pages of the site below a directory, by their paths below its root.
fn read_pages(root: &Path, below: &Path, pages: &mut BTreeMap<String, Page>) -> Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            read_pages(root, &path, pages)?;
        } else if path.extension().is_some_and(|end| end == "html") {
            let text = fs::read_to_string(entry.path())?;
            pages.insert(path.to_string_lossy().into_owned(), Page::of_html(&text));
        }
    }
    Ok(())
}
