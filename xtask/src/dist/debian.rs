//! Packages of Debian and Ubuntu, made by dpkg-deb.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{
    DESCRIPTION, Dist, SUMMARY, VERSION,
    files::{CONFIGURATION, Files, gzip},
};
use crate::{apt, shell};

/// Scripts of the package and its question.
const SCRIPTS: [(&str, u32); 5] = [
    ("config", 0o755),
    ("postinst", 0o755),
    ("prerm", 0o755),
    ("postrm", 0o755),
    ("templates", 0o644),
];

pub fn make(dist: &Dist) -> Result<Vec<PathBuf>> {
    apt::obtain(&[("dpkg-deb", "dpkg")], "Debian packages")?;
    let changes = dist.scratch.join("changelog");
    fs::write(&changes, changelog(dist)?)?;
    let changes = gzip(&changes)?;
    let licences = copyright();
    let documents = Path::new("/usr/share/doc/profiler");
    let files = dist
        .files()?
        .placed(|path| {
            let zsh = path.strip_prefix("/usr/share/zsh/site-functions");
            let zsh = zsh.map(|name| Path::new("/usr/share/zsh/vendor-completions").join(name));
            Some(zsh.unwrap_or_else(|_| path.to_owned()))
        })
        .with(documents.join("changelog.gz"), changes.clone())
        .with(documents.join("copyright"), licences.clone());
    let main = Package {
        name: "profiler",
        depends: "libc6 (>= 2.28), debconf (>= 0.5) | debconf-2.0, passwd",
        section: "admin",
        summary: SUMMARY.to_owned(),
        description: DESCRIPTION,
        is_main: true,
    };
    let (path, symbols) = dist.symbols()?;
    let documents = Path::new("/usr/share/doc/profiler-dbgsym");
    let debug = Files::of([(path, symbols)])
        .with(documents.join("changelog.gz"), changes)
        .with(documents.join("copyright"), licences);
    let symbols = Package {
        name: "profiler-dbgsym",
        depends: "profiler",
        section: "debug",
        summary: "debug symbols for profiler".to_owned(),
        description: "Names of functions and lines for backtraces of profiler.",
        is_main: false,
    };
    Ok(vec![main.make(dist, &files)?, symbols.make(dist, &debug)?])
}

struct Package {
    name: &'static str,
    depends: &'static str,
    section: &'static str,
    summary: String,
    description: &'static str,
    /// Has scripts and configuration files.
    is_main: bool,
}

impl Package {
    fn make(&self, dist: &Dist, files: &Files) -> Result<PathBuf> {
        let root = dist.scratch.join(self.name);
        files.write(&root, dist.source)?;
        let control = root.join("DEBIAN");
        fs::create_dir(&control)?;
        let write = |name: &str, text: &[u8], permissions: u32| {
            let path = control.join(name);
            fs::write(&path, text)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(permissions)))
                .with_context(|| format!("writing {}", path.display()))
        };
        let size = files.bytes().div_ceil(1024);
        write("control", self.control(dist, size).as_bytes(), 0o644)?;
        let names = files.paths().filter_map(|path| path.strip_prefix("/").ok());
        let sums = shell::stdout(Command::new("md5sum").args(names).current_dir(&root))?;
        write("md5sums", sums.as_bytes(), 0o644)?;
        if self.is_main {
            write(
                "conffiles",
                (CONFIGURATION.join("\n") + "\n").as_bytes(),
                0o644,
            )?;
            for (name, permissions) in SCRIPTS {
                let from = dist.workspace.root.join("xtask/dist/debian").join(name);
                let text =
                    fs::read(&from).with_context(|| format!("reading {}", from.display()))?;
                write(name, &text, permissions)?;
            }
        }
        let package = format!("{}_{VERSION}_{}.deb", self.name, dist.arch.debian);
        let package = dist.out.join(package);
        // xz: dpkg of Debian 11 reads nothing newer. One thread: the result depends on their number.
        shell::run_slowly(
            Command::new("dpkg-deb")
                .args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"])
                .args([&root, &package])
                .env("SOURCE_DATE_EPOCH", dist.source.time.to_string())
                .stdout(std::process::Stdio::null()),
            &format!("making the Debian package {}", self.name),
        )?;
        Ok(package)
    }

    fn control(&self, dist: &Dist, size_kib: u64) -> String {
        let mut text = format!(
            "Package: {}\nVersion: {VERSION}\nArchitecture: {}\nMaintainer: {}\n\
             Installed-Size: {size_kib}\nDepends: {}\nSection: {}\nPriority: optional\n",
            self.name, dist.arch.debian, dist.source.maintainer, self.depends, self.section
        );
        if self.is_main {
            text.push_str("Suggests: libcap2-bin, python3\n");
        }
        let _ = writeln!(text, "Description: {}", self.summary);
        for line in self.description.lines() {
            let _ = writeln!(text, " {line}");
        }
        text
    }
}

/// Debian's form of a change; CHANGELOG.md has them all.
fn changelog(dist: &Dist) -> Result<String> {
    let date = shell::stdout(
        Command::new("date")
            .args(["-u", "-R", "-d", &format!("@{}", dist.source.time)])
            .env("LC_ALL", "C"),
    )?;
    Ok(format!(
        "profiler ({VERSION}) unstable; urgency=medium\n\n  * Commit {}.\n\n -- {}  {}",
        dist.source.commit, dist.source.maintainer, date
    ))
}

/// <https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/>
fn copyright() -> Vec<u8> {
    const MIT: &str = include_str!("../../../LICENSE-MIT");
    let holder = MIT
        .lines()
        .find_map(|line| line.strip_prefix("Copyright "))
        .unwrap_or_default();
    let holder = holder.trim_start_matches("(c) ");
    let mit: Vec<&str> = MIT
        .lines()
        .skip_while(|line| !line.starts_with("Permission"))
        .map(|line| if line.is_empty() { "." } else { line })
        .collect();
    let mit = mit.join("\n ");
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: profiler\n\n\
         Files: *\nCopyright: {holder}\nLicense: Expat or Apache-2.0\n\n\
         Files: profiler-ebpf/*\nCopyright: {holder}\nLicense: Expat or Apache-2.0 or GPL-2\n\
         Comment: The BPF programs, which the kernel runs, are inside /usr/bin/profiler.\n\n\
         License: Expat\n {mit}\n\n\
         License: Apache-2.0\n On Debian systems, the full text of the licence is in\n \
         /usr/share/common-licenses/Apache-2.0.\n\n\
         License: GPL-2\n On Debian systems, the full text of the licence is in\n \
         /usr/share/common-licenses/GPL-2.\n"
    )
    .into_bytes()
}
