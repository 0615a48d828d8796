//! `cargo xtask doctor`: installed and missing prerequisites, and the commands that install them.

use std::{
    fs,
    process::{Command, ExitCode},
};

use crate::{
    apt,
    arch::Arch,
    bench::tools,
    linker, python, shell, test, toolchain,
    workspace::{self, Workspace},
};

enum State {
    Present(String),
    /// Installed by `cargo xtask` when it is needed.
    Automatic(String),
    Missing {
        found: String,
        remedy: String,
    },
}

struct Check {
    name: &'static str,
    /// Whether building or running requires it.
    essential: bool,
    state: State,
}

/// Prints the table; fails if a requirement of building or running is missing.
pub fn run(workspace: &Workspace) -> ExitCode {
    let sections = [
        ("build", build(workspace)),
        ("run", running()),
        ("test and measure", testing(workspace)),
    ];
    let mut complete = true;
    for (title, checks) in sections {
        println!("{title}");
        for check in checks {
            complete &= !(check.essential && matches!(check.state, State::Missing { .. }));
            print(&check);
        }
    }
    if complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print(check: &Check) {
    let name = check.name;
    match &check.state {
        State::Present(found) => println!("  ok       {name:<14} {found}"),
        State::Automatic(how) => println!("  later    {name:<14} {how}"),
        State::Missing { found, remedy } => {
            println!("  MISSING  {name:<14} {found}");
            println!("           {:<14} -> {remedy}", "");
        }
    }
}

fn present_or(found: Option<String>, remedy: &str) -> State {
    found.map_or_else(
        || State::Missing {
            found: "not found".into(),
            remedy: remedy.into(),
        },
        State::Present,
    )
}

/// The first line of a program's output, usually its version.
fn version(program: &str, args: &[&str]) -> Option<String> {
    let text = shell::stdout(Command::new(program).args(args)).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

fn build(workspace: &Workspace) -> Vec<Check> {
    let (major, minor) = workspace.rust_version;
    let rustc = version("rustc", &["--version"]);
    let recent = rustc
        .as_deref()
        .and_then(|line| workspace::parse_version(line.split(' ').nth(1)?));
    let compiler = match rustc {
        Some(found) if recent < Some(workspace.rust_version) => State::Missing {
            found: format!("{found}, but at least {major}.{minor} is required"),
            remedy: "run `rustup update stable`".into(),
        },
        found => present_or(found, "install rustup (https://rustup.rs)"),
    };
    let cc = version("cc", &["--version"]);
    let cc_remedy = format!(
        "run `{}`",
        apt::command(&["gcc".into(), "libc6-dev".into()])
    );
    let mut checks = vec![
        Check {
            name: "rustc",
            essential: true,
            state: compiler,
        },
        Check {
            name: "cargo",
            essential: true,
            state: present_or(version("cargo", &["--version"]), "install rustup"),
        },
        Check {
            name: "C compiler",
            essential: true,
            state: present_or(cc, &cc_remedy),
        },
    ];
    checks.extend(bpf_toolchain(workspace));
    checks
}

fn bpf_toolchain(workspace: &Workspace) -> Vec<Check> {
    let compilers = toolchain::usable(workspace);
    let found = toolchain::find(workspace);
    let chosen = match &found {
        Some(toolchain) => Some(&toolchain.compiler),
        None => compilers
            .iter()
            .find(|compiler| linker::is_installable(compiler))
            .or(compilers.first()),
    };
    let compiler = match chosen {
        Some(c) => State::Present(format!(
            "{} ({}), with rust-src",
            c.rustc.display(),
            c.release
        )),
        None if apt::available() => {
            State::Automatic("installed by `cargo xtask build` with apt-get".into())
        }
        None => State::Missing {
            found: "no rustc with rust-src".into(),
            remedy: toolchain::remedy(workspace),
        },
    };
    let linker = match (&found, chosen) {
        (Some(toolchain), _) => State::Present(toolchain.linker.path.display().to_string()),
        (None, Some(c)) if !linker::is_installable(c) => State::Missing {
            found: format!("none for LLVM {}", c.llvm),
            remedy: linker::remedy(c),
        },
        _ => State::Automatic("built by `cargo xtask build`".into()),
    };
    let mut checks = vec![Check {
        name: "BPF rustc",
        essential: true,
        state: compiler,
    }];
    if let Some(c) = chosen {
        let prefix = linker::llvm_prefix(c.llvm);
        let location = prefix.map_or(String::new(), |prefix| format!(" at {}", prefix.display()));
        checks.push(Check {
            name: "LLVM",
            essential: false,
            state: State::Present(format!("{}{location}", c.llvm)),
        });
    }
    checks.push(Check {
        name: "bpf-linker",
        essential: true,
        state: linker,
    });
    checks
}

fn running() -> Vec<Check> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    let btf = fs::metadata("/sys/kernel/btf/vmlinux").ok();
    vec![
        Check {
            name: "kernel",
            essential: true,
            state: present_or(
                kernel.map(|release| release.trim().to_owned()),
                "mount /proc",
            ),
        },
        Check {
            name: "kernel BTF",
            essential: true,
            state: present_or(
                btf.map(|file| format!("/sys/kernel/btf/vmlinux, {} KiB", file.len() / 1024)),
                "boot a kernel with CONFIG_DEBUG_INFO_BTF=y",
            ),
        },
        Check {
            name: "privilege",
            essential: true,
            state: privilege(),
        },
        Check {
            name: "cgroup",
            essential: false,
            state: cgroup(),
        },
    ]
}

/// Required capabilities, with their numbers in `linux/capability.h`.
const CAPABILITIES: &[(&str, u32)] = &[
    ("cap_dac_read_search", 2),
    ("cap_sys_ptrace", 19),
    ("cap_perfmon", 38),
    ("cap_bpf", 39),
];

fn privilege() -> State {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let missing: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(_, bit)| effective & (1 << bit) == 0)
        .map(|(name, _)| *name)
        .collect();
    let user = if shell::is_root() { "root" } else { "not root" };
    if missing.is_empty() {
        State::Present(format!("{user}, with all required capabilities"))
    } else if shell::is_root() {
        State::Missing {
            found: format!("root without {}", missing.join(", ")),
            remedy: "start the container with `--cap-add` for each of them".into(),
        }
    } else if shell::which("sudo").is_some() {
        State::Present("not root: `cargo xtask run` uses sudo".into())
    } else {
        State::Missing {
            found: format!("{user}, without sudo and without {}", missing.join(", ")),
            remedy: format!(
                "as root: `setcap {}+ep target/release/profiler`",
                missing.join(",")
            ),
        }
    }
}

fn cgroup() -> State {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let found: Vec<String> = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind) = (fields.next()?, fields.next()?);
            match kind {
                "cgroup2" => Some(format!("v2 at {path}")),
                "cgroup" if path.ends_with("/cpu") || path.contains("cpu,") => {
                    Some(format!("v1 at {path}"))
                }
                _ => None,
            }
        })
        .collect();
    let found = (!found.is_empty()).then(|| found.join(", "));
    present_or(
        found,
        "run `mount -t cgroup2 none /sys/fs/cgroup` (needed for --cgroup only)",
    )
}

fn testing(workspace: &Workspace) -> Vec<Check> {
    let automatic =
        |action: &str| State::Automatic(format!("{action} when `cargo xtask test` needs it"));
    let python = match python::installed(workspace) {
        Some(versions) => State::Present(versions),
        None if python::can_create_environments() || apt::available() => automatic("installed"),
        None => State::Missing {
            found: "no python3 with virtual environments".into(),
            remedy: format!("run `{}`", python::remedy()),
        },
    };
    let deny = test::deny::find(workspace).map(|path| path.display().to_string());
    let nextest = version("cargo", &["nextest", "--version"]);
    let qemu = match Arch::host() {
        Ok(Arch {
            qemu: (program, package),
            ..
        }) => match version(program, &["--version"]) {
            None if apt::available() => automatic("installed"),
            found => {
                let install = apt::command(&[(*package).into()]);
                present_or(found, &format!("run `{install}`"))
            }
        },
        Err(error) => present_or(None, &error.to_string()),
    };
    let mut checks = vec![
        Check {
            name: "qemu",
            essential: false,
            state: qemu,
        },
        Check {
            name: "python packages",
            essential: false,
            state: python,
        },
        Check {
            name: "cargo-deny",
            essential: false,
            state: deny.map_or_else(|| automatic("built"), State::Present),
        },
        Check {
            name: "cargo-nextest",
            essential: false,
            state: State::Present(nextest.unwrap_or_else(|| "none: `cargo test` is used".into())),
        },
    ];
    checks.extend(tools::ALL.map(|tool| Check {
        name: tool.program,
        essential: false,
        state: match tool.version() {
            None if apt::available() => {
                State::Automatic("installed when `cargo xtask bench` needs it".into())
            }
            found => present_or(found, &format!("run `{}`", apt::command(&[tool.package()]))),
        },
    }));
    checks
}
