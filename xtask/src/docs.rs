//! Pages that programs write: the code is the only place where a column or an option is described. The page of measured
//! figures says whether the programs have changed since.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{bench::page, bpf, shell, workspace::Workspace};

/// Each page is what `profiler` prints with these arguments.
const PAGES: &[(&str, &[&str])] = &[("docs/metrics.md", &["schema", "--markdown"])];

/// `cargo xtask docs`
#[derive(clap::Args)]
pub struct Args {
    /// Change nothing; fail if a page is not what its command prints now
    #[arg(long)]
    check: bool,
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    bpf::build(workspace)?;
    let profiler = bpf::build_controller(workspace, true)?;
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
        bail!(
            "not what the program prints now: {}; run `cargo xtask docs`",
            stale.join(", ")
        );
    }
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
    let measured = page::current(workspace).map(|text| (page::PAGE, text));
    printed.chain([measured]).collect()
}
