//! `cargo xtask dist`: packages.
//!
//! All formats have the files of [`files`]; the same source gives the same bytes.

mod binary;
pub mod crates;
mod debian;
mod files;
mod image;
mod rpm;
mod sbom;
mod spack;
mod tarball;
mod wheel;

use std::{
    cell::OnceCell,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use self::{binary::Binary, files::Files};
use crate::{arch::Arch, bpf, shell, workspace::Workspace};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const SUMMARY: &str = "profiles processes, batch jobs and nodes with eBPF";
const DESCRIPTION: &str =
    "Where time, bytes, FLOPS and energy of a workload go: scheduler times, file,
block and network I/O of each process, hardware counters, GPUs and energy, for
a command, a process tree, a batch job or a node, as Parquet files. Needs a
kernel with BTF: Linux 5.15, RHEL 9, SLES 15 SP4, or later.";

/// `cargo xtask dist`
#[derive(clap::Args)]
pub struct Args {
    /// Packages to make [default: all]
    formats: Vec<Format>,
    #[command(flatten)]
    place: Place,
}

/// For which machine packages are, and where they are put.
#[derive(clap::Args)]
struct Place {
    /// Architecture of the program [default: this machine's]
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(Arch::names()))]
    arch: Option<String>,
    /// Directory of the packages [default: target/dist/VERSION]
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// `cargo xtask wheel`: `cargo xtask dist wheel`.
#[derive(clap::Args)]
pub struct WheelArgs {
    #[command(flatten)]
    place: Place,
}

impl From<WheelArgs> for Args {
    fn from(WheelArgs { place }: WheelArgs) -> Self {
        let formats = vec![Format::Wheel];
        Self { formats, place }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Format {
    /// Archive for any directory, with a module file for Environment Modules and Lmod
    Tar,
    /// Repository for Spack with a recipe that installs the archive
    Spack,
    /// Debian and Ubuntu, with debug information in a package of its own; needs dpkg
    Deb,
    /// RHEL, Fedora and SLES, likewise; needs rpmbuild
    Rpm,
    /// Python package, alone and with the program
    Wheel,
    /// Static program for an initramfs or any container: without NVIDIA GPUs
    Static,
    /// Container image with the static program alone
    Image,
    /// Crates for crates.io, that of the program with the BPF objects
    Crate,
}

/// The source from which packages are made.
pub struct Source {
    /// With "with changes" if its files are not as they were committed.
    commit: String,
    /// Whether there are neither changes nor new files.
    is_clean: bool,
    /// Time of the commit, s since 1970; the time of every file in the packages.
    time: u64,
    /// Who answers for the packages, as `NAME <ADDRESS>`.
    maintainer: String,
}

impl Source {
    /// What `--version` must say of a program that is built from it.
    pub fn commit(&self) -> &str {
        &self.commit
    }

    /// `DEBFULLNAME` and `DEBEMAIL` name the maintainer, as for Debian's own tools.
    pub fn of(workspace: &Workspace) -> Result<Self> {
        let git = |args: &[&str]| {
            let text = shell::stdout(
                Command::new("git")
                    .arg("-C")
                    .arg(&workspace.root)
                    .args(args),
            )?;
            anyhow::Ok(text.trim().to_owned())
        };
        let status = git(&["status", "--porcelain"])?;
        let mut commit = git(&["rev-parse", "HEAD"])?;
        if status.lines().any(|line| !line.starts_with("??")) {
            commit.push_str(" with changes");
        }
        let time = git(&["log", "-1", "--format=%ct"])?;
        let variable = |name, default: &str| std::env::var(name).unwrap_or_else(|_| default.into());
        Ok(Self {
            commit,
            is_clean: status.is_empty(),
            time: time.parse().context("the time of the commit")?,
            maintainer: format!(
                "{} <{}>",
                variable("DEBFULLNAME", "The profiler developers"),
                variable("DEBEMAIL", "profiler@packages.invalid")
            ),
        })
    }
}

/// What every format needs.
struct Dist<'a> {
    workspace: &'a Workspace,
    arch: &'static Arch,
    source: &'a Source,
    built: Built,
    /// Directory of the packages.
    out: PathBuf,
    /// Directory for intermediate files.
    scratch: PathBuf,
}

/// Programs and packages, which are made when a format first needs them.
#[derive(Default)]
struct Built {
    programs: OnceCell<Programs>,
    static_program: OnceCell<PathBuf>,
    archive: OnceCell<PathBuf>,
}

/// Programs that are linked dynamically.
struct Programs {
    binary: Binary,
    /// The program for this machine, which prints manual pages and completions.
    runnable: PathBuf,
}

impl Dist<'_> {
    fn programs(&self) -> Result<&Programs> {
        if let Some(programs) = self.built.programs.get() {
            return Ok(programs);
        }
        let binary = binary::build(self.workspace, self.arch, self.source)?;
        let runnable = if self.arch.is_host() {
            binary.program.clone()
        } else {
            // It prints the same, and is built faster than a package.
            bpf::build(self.workspace)?;
            bpf::build_profiler(self.workspace, true)?
        };
        let programs = Programs { binary, runnable };
        Ok(self.built.programs.get_or_init(|| programs))
    }

    /// The files of the main package.
    fn files(&self) -> Result<Files> {
        let Programs { binary, runnable } = self.programs()?;
        Files::new(self.workspace, binary, runnable, &self.scratch)
    }

    /// The files of the packages with debug information.
    fn symbols(&self) -> Result<(PathBuf, Vec<u8>)> {
        let binary = &self.programs()?.binary;
        let (directory, rest) = binary.build_id.split_at(2);
        let path = format!("/usr/lib/debug/.build-id/{directory}/{rest}.debug");
        let content = fs::read(&binary.symbols)?;
        Ok((path.into(), content))
    }

    fn static_program(&self) -> Result<&Path> {
        if let Some(program) = self.built.static_program.get() {
            return Ok(program);
        }
        let program = binary::build_static(self.workspace, self.arch, self.source)?;
        Ok(self.built.static_program.get_or_init(|| program))
    }

    fn archive(&self) -> Result<&Path> {
        if let Some(archive) = self.built.archive.get() {
            return Ok(archive);
        }
        let archive = tarball::make(self)?;
        Ok(self.built.archive.get_or_init(|| archive))
    }

    fn make_static(&self) -> Result<Vec<PathBuf>> {
        let name = format!("profiler-{VERSION}-{}-static", self.arch.name);
        let path = self.out.join(name);
        fs::copy(self.static_program()?, &path)
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(vec![path])
    }

    fn make(&self, format: Format) -> Result<Vec<PathBuf>> {
        match format {
            Format::Tar => Ok(vec![self.archive()?.to_owned()]),
            Format::Spack => spack::make(self),
            Format::Deb => debian::make(self),
            Format::Rpm => rpm::make(self),
            Format::Wheel => wheel::make(self),
            Format::Static => self.make_static(),
            Format::Image => image::make(self),
            Format::Crate => crates::make(self),
        }
    }
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let arch = args.place.arch.as_deref().and_then(Arch::parse);
    let arch = arch.map_or_else(Arch::host, Ok)?;
    let out = args.place.out.clone();
    let out = out.unwrap_or_else(|| workspace.target.join("dist").join(VERSION));
    let formats = if args.formats.is_empty() {
        Format::value_variants()
    } else {
        &args.formats
    };
    package(workspace, arch, Built::default(), formats, &out).map(|packages| {
        for package in packages {
            println!("{}", package.display());
        }
    })
}

/// Packages of a program that was built for this machine, for tests of everything but the program: it
/// can need a newer C library than the packages say. `runnable` prints manual pages and completions.
pub fn of_program(
    workspace: &Workspace,
    program: &Path,
    runnable: &Path,
    formats: &[Format],
    out: &Path,
) -> Result<Vec<PathBuf>> {
    let arch = Arch::host()?;
    let scratch = scratch(out);
    fs::create_dir_all(&scratch).with_context(|| format!("creating {}", scratch.display()))?;
    let binary = binary::split(arch, program, &scratch)?;
    let built = Built {
        static_program: OnceCell::from(binary.program.clone()),
        programs: OnceCell::from(Programs {
            binary,
            runnable: runnable.to_owned(),
        }),
        archive: OnceCell::new(),
    };
    package(workspace, arch, built, formats, out)
}

/// The Debian package of a program that was built for this machine.
pub fn debian_package(workspace: &Workspace, program: &Path, out: &Path) -> Result<PathBuf> {
    let packages = of_program(workspace, program, program, &[Format::Deb], out)?;
    let mut packages = packages.into_iter();
    packages.next().context("dpkg-deb made no package")
}

/// Makes packages and the list of their checksums; returns their paths.
fn package(
    workspace: &Workspace,
    arch: &'static Arch,
    built: Built,
    formats: &[Format],
    out: &Path,
) -> Result<Vec<PathBuf>> {
    let source = Source::of(workspace)?;
    let scratch = scratch(out).join(arch.name);
    for directory in [out, &scratch] {
        fs::create_dir_all(directory)
            .with_context(|| format!("creating {}", directory.display()))?;
    }
    let dist = Dist {
        workspace,
        arch,
        source: &source,
        built,
        out: out.to_owned(),
        scratch,
    };
    let mut packages = Vec::new();
    for format in formats {
        packages.extend(dist.make(*format)?);
    }
    let sbom = dist
        .out
        .join(format!("profiler-{VERSION}-{}.cdx.json", arch.name));
    fs::write(&sbom, sbom::make(workspace, arch, &source)?)
        .with_context(|| format!("writing {}", sbom.display()))?;
    packages.push(sbom);
    sums(&dist.out)?;
    Ok(packages)
}

/// Directory for intermediate files, beside that of the packages.
fn scratch(out: &Path) -> PathBuf {
    files::with_suffix(out, ".stage")
}

/// Writes SHA256SUMS for all packages in the directory.
fn sums(out: &Path) -> Result<()> {
    const NAME: &str = "SHA256SUMS";
    let mut names = Vec::new();
    for entry in fs::read_dir(out)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && entry.file_name() != NAME {
            names.push(entry.file_name());
        }
    }
    names.sort();
    let sums = shell::stdout(Command::new("sha256sum").args(names).current_dir(out))?;
    fs::write(out.join(NAME), sums).context(NAME)
}
