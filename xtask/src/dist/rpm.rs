//! Packages of RHEL, Fedora and SLES, made by rpmbuild from files that exist.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::{
    DESCRIPTION, Dist, SUMMARY, VERSION,
    files::{CONFIGURATION, Files},
};
use crate::{apt, shell};

const LICENCE: &str = "(MIT OR Apache-2.0) AND (MIT OR Apache-2.0 OR GPL-2.0-only)";
const RELEASE: &str = "1";

/// Scripts: the user of the service, and the units, which are disabled at first. After an upgrade,
/// units that run use the new program; the run that they were writing is complete.
const SCRIPTS: &str = r"
%pre
getent passwd profiler >/dev/null || useradd --system --user-group \
    --home-dir /var/lib/profiler --no-create-home --comment 'Profiler of this node' \
    --shell /sbin/nologin profiler || :

%post
[ -d /var/lib/profiler ] || install -d -m 0750 -o profiler -g profiler /var/lib/profiler || :
[ ! -d /run/systemd/system ] || systemctl daemon-reload || :

%preun
if [ $1 -eq 0 ] && [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now profiler.service profiler-serve.service || :
fi

%postun
[ ! -d /run/systemd/system ] || systemctl daemon-reload || :
if [ $1 -ge 1 ]; then
    [ ! -d /run/systemd/system ] || systemctl try-restart profiler.service profiler-serve.service || :
elif [ -d /var/lib/profiler ] && ! rmdir /var/lib/profiler 2>/dev/null; then
    echo 'profiler: /var/lib/profiler has recorded data and is kept'
else
    userdel profiler || :
fi
";

pub fn make(dist: &Dist) -> Result<Vec<PathBuf>> {
    apt::obtain(&[("rpmbuild", "rpm")], "RPM packages")?;
    let files = dist.files()?.placed(|path| {
        let Ok(licence) = path.strip_prefix("/usr/share/doc/profiler") else {
            return Some(path.to_owned());
        };
        let is_licence = licence.to_string_lossy().starts_with("LICENSE");
        let place = Path::new("/usr/share/licenses/profiler").join(licence);
        Some(if is_licence { place } else { path.to_owned() })
    });
    let (path, symbols) = dist.symbols()?;
    let debug = path.clone();
    let all = files.with(path, symbols);
    let root = dist.scratch.join("rpm/root");
    all.write(&root, dist.source)?;
    let spec = dist.scratch.join("rpm/profiler.spec");
    fs::write(&spec, self::spec(dist, &all, &debug)?)
        .with_context(|| format!("writing {}", spec.display()))?;
    let top = dist.scratch.join("rpm/top");
    let _ = fs::remove_dir_all(&top);
    let define = |name: &str, value: &str| format!("--define={name} {value}");
    shell::run_slowly(
        Command::new("rpmbuild")
            .args(["-bb", "--quiet", "--target", dist.arch.name])
            .arg(format!("--buildroot={}", top.join("BUILDROOT").display()))
            .arg(define("_topdir", &top.to_string_lossy()))
            .arg(define("_rpmdir", &top.join("RPMS").to_string_lossy()))
            .arg(define("_files", &root.to_string_lossy()))
            .arg(define("_buildhost", "localhost"))
            .arg(define("use_source_date_epoch_as_buildtime", "1"))
            .arg(define("clamp_mtime_to_source_date_epoch", "1"))
            .arg(define("_build_id_links", "none"))
            .arg(define("__os_install_post", "%{nil}"))
            // rpm of SLES 15 and RHEL 8 reads xz.
            .arg(define("_binary_payload", "w6.xzdio"))
            .arg(&spec)
            .env("SOURCE_DATE_EPOCH", dist.source.time.to_string())
            .stdout(Stdio::null()),
        "making the RPM packages",
    )?;
    let mut packages = Vec::new();
    for name in ["profiler", "profiler-debuginfo"] {
        let name = format!("{name}-{VERSION}-{RELEASE}.{}.rpm", dist.arch.name);
        let from = top.join("RPMS").join(dist.arch.name).join(&name);
        let to = dist.out.join(&name);
        if !from.is_file() {
            bail!("rpmbuild made no {name}");
        }
        fs::copy(&from, &to).with_context(|| format!("writing {}", to.display()))?;
        packages.push(to);
    }
    Ok(packages)
}

fn spec(dist: &Dist, files: &Files, debug: &Path) -> Result<String> {
    let mut text = format!(
        "Name: profiler\nVersion: {VERSION}\nRelease: {RELEASE}\nSummary: {}\nLicense: {LICENCE}\n\
         Group: System/Monitoring\nPackager: {}\nRequires(pre): shadow-utils\n",
        capitalised(SUMMARY),
        dist.source.maintainer
    );
    let _ = write!(
        text,
        "\n%description\n{DESCRIPTION}\n\n\
         %package debuginfo\nSummary: Debug information of profiler\nGroup: Development/Debug\n\n\
         %description debuginfo\nNames of functions and lines for backtraces of profiler.\n\n\
         %install\nmkdir -p %{{buildroot}}\ncp -a %{{_files}}/. %{{buildroot}}/\n{SCRIPTS}\n\
         %files debuginfo\n{}\n\n%files\n",
        debug.display()
    );
    // Directories of this package only; the others belong to packages of the system.
    let mut own = BTreeSet::new();
    for path in files.paths().filter(|path| *path != debug) {
        let below = path.ancestors().skip(1);
        own.extend(below.take_while(|directory| {
            let mut names = directory.iter();
            names.any(|name| name == "profiler")
        }));
    }
    for directory in own {
        let _ = writeln!(text, "%dir {}", directory.display());
    }
    for path in files.paths().filter(|path| *path != debug) {
        let path = path.to_str().context("paths are UTF-8")?;
        let kind = if CONFIGURATION.contains(&path) {
            "%config(noreplace) "
        } else if path.starts_with("/usr/share/licenses/") {
            "%license "
        } else if path.starts_with("/usr/share/doc/") || path.starts_with("/usr/share/man/") {
            "%doc "
        } else {
            ""
        };
        let _ = writeln!(text, "{kind}{path}");
    }
    let date = shell::stdout(
        Command::new("date")
            .args([
                "-u",
                "+%a %b %d %Y",
                "-d",
                &format!("@{}", dist.source.time),
            ])
            .env("LC_ALL", "C"),
    )?;
    let _ = write!(
        text,
        "\n%changelog\n* {} {} - {VERSION}-{RELEASE}\n- Commit {}.\n",
        date.trim(),
        dist.source.maintainer,
        dist.source.commit
    );
    Ok(text)
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}
