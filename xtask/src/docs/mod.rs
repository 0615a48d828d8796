//! The manual: generated pages, links, and the site. Columns and options are described only in the
//! code. The page of measurements reports whether the programs have changed since.

mod links;
mod manual;
mod site;

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use self::manual::Manual;
use crate::{bench::overhead_page, bpf, shell, workspace::Workspace};

pub use site::build as site;

/// Pages and the arguments of `profiler` that print them.
const PAGES: &[(&str, &[&str])] = &[("docs/metrics.md", &["schema", "--markdown"])];

/// `cargo xtask docs`
#[derive(clap::Args)]
pub struct Args {
    /// Only check that the pages are up to date and that their links lead somewhere
    #[arg(long)]
    check: bool,
    /// Build the site with search, as HTML below target/site, from the pages as they are
    #[arg(long, conflicts_with = "check")]
    site: bool,
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if args.site {
        println!("{}", site(workspace)?.display());
        return Ok(());
    }
    bpf::build(workspace)?;
    let profiler = bpf::build_profiler(workspace, false)?;
    if args.check {
        check(workspace, &profiler)
    } else {
        generate(workspace, &profiler)
    }
}

pub fn check(workspace: &Workspace, profiler: &Path) -> Result<()> {
    let mut stale = Vec::new();
    for (page, text) in pages(workspace, profiler)? {
        if fs::read_to_string(workspace.root.join(page)).ok() != Some(text) {
            stale.push(page);
        }
    }
    if !stale.is_empty() {
        bail!("outdated: {}; run `cargo xtask docs`", stale.join(", "));
    }
    Manual::read(&workspace.root)?;
    Ok(())
}

fn generate(workspace: &Workspace, profiler: &Path) -> Result<()> {
    for (page, text) in pages(workspace, profiler)? {
        let path = workspace.root.join(page);
        if fs::read_to_string(&path).is_ok_and(|old| old == text) {
            continue;
        }
        fs::create_dir_all(path.parent().unwrap_or(&workspace.root))
            .and_then(|()| fs::write(&path, text))
            .with_context(|| format!("writing {}", path.display()))?;
        println!("{page}");
    }
    Ok(())
}

fn pages(workspace: &Workspace, profiler: &Path) -> Result<Vec<(&'static str, String)>> {
    let printed = PAGES
        .iter()
        .map(|(page, args)| Ok((*page, shell::stdout(Command::new(profiler).args(*args))?)));
    let measured = overhead_page::current(workspace).map(|text| (overhead_page::PAGE, text));
    printed.chain([measured]).collect()
}
