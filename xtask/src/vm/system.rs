//! A guest with a complete Debian: systemd is pid 1, cgroups are v2 only.

use std::{
    collections::hash_map::DefaultHasher,
    fs,
    hash::{Hash as _, Hasher as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use super::{
    NEED_SYSTEM,
    initramfs::{add_modules, strip},
    kernel::{self, Flavour, Kernel},
    modules::ModuleList,
    programs::{self, Programs},
    qemu::{self, Machine},
    tree::Tree,
    userland::Userland,
    verdict,
};
use crate::{
    apt,
    arch::Arch,
    dist,
    run::privileged,
    shell::{self, progress},
    workspace::Workspace,
};

/// Kernel of the same Debian release.
const KERNEL: &str = "6.1";
/// Name of the test binary.
const SUITE: &str = "e2e";
const MAKE: &str = "tests/environments/system/make.sh";
const UNIT: &str = "tests/environments/system/profiler-tests.service";
/// Path of the Debian package in the guest.
const PACKAGE: &str = "/srv/profiler.deb";
const MEMORY: &str = "2G";
const TIMEOUT: Duration = Duration::from_secs(1800);

/// Modules for the disk, which has all other modules.
const MODULES: &ModuleList = &[("virtio_pci", ""), ("virtio_blk", ""), ("ext4", "")];

/// The tier `system` of `cargo xtask test`.
pub fn test(workspace: &Workspace, filter: &[String]) -> Result<String> {
    let tests = run(workspace, Machine::new(Machine::CPUS, TIMEOUT), filter)?;
    Ok(format!("{tests} tests"))
}

/// Boots the system, whose disk is created if it is missing, and runs the tests in it; returns the
/// number of passed tests.
pub fn run(workspace: &Workspace, machine: Machine, filter: &[String]) -> Result<u64> {
    let arch = Arch::parse("x86_64").context("known")?;
    if !arch.is_host() {
        bail!("complete systems are supported only on x86_64 hosts");
    }
    qemu::obtain(arch)?;
    let kernel = kernel::obtain(workspace, arch, Flavour::Cloud, KERNEL, None)?;
    let directory = workspace.target.join("vm/system");
    fs::create_dir_all(&directory).with_context(|| format!("creating {}", directory.display()))?;
    let disk = disk(workspace, &kernel, &directory)?;
    let programs = programs::build(workspace, arch, SUITE)?;
    let package = dist::debian_package(workspace, &programs.profiler, &directory.join("packages"))?;
    let payload = Payload {
        programs: &programs,
        package: &package,
    };
    let initramfs = initramfs(workspace, arch, &kernel, &payload, filter, &directory)?;
    let machine = Machine {
        memory: MEMORY.into(),
        disk: Some(disk),
        ..machine
    };
    progress(&format!("booting Debian with Linux {}", kernel.name));
    let console = qemu::boot(arch, &kernel, &initramfs, &machine)?;
    let verdict = verdict::judge(&console.lines, console.end)?;
    Ok(verdict.passed)
}

/// Path of the disk image, whose name is a hash of its inputs. Images of other inputs are removed.
fn disk(workspace: &Workspace, kernel: &Kernel, directory: &Path) -> Result<PathBuf> {
    let script = workspace.root.join(MAKE);
    let modules = kernel.modules.as_deref();
    let modules = modules.context("Debian's kernel has modules")?;
    let mut hasher = DefaultHasher::new();
    let text = fs::read(&script).with_context(|| format!("reading {}", script.display()))?;
    (text, &kernel.release).hash(&mut hasher);
    let name = format!("{:016x}.img", hasher.finish());
    let image = directory.join(&name);
    if image.is_file() {
        return Ok(image);
    }
    for entry in fs::read_dir(directory)?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "img") {
            fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    let tools = [("mmdebstrap", "mmdebstrap"), ("mke2fs", "e2fsprogs")];
    apt::obtain(&tools, "a Debian to boot")?;
    let mut make = privileged(Path::new("sh"));
    let step = "creating a Debian to boot (a minute or two)";
    shell::run_slowly(make.arg(script).arg(&image).arg(modules), step)?;
    Ok(image)
}

/// Files under test, which change more often than the disk.
struct Payload<'a> {
    programs: &'a Programs,
    /// The Debian package with the same program.
    package: &'a Path,
}

/// The initramfs with modules for the disk and the files under test.
fn initramfs(
    workspace: &Workspace,
    arch: &'static Arch,
    kernel: &Kernel,
    payload: &Payload,
    filter: &[String],
    directory: &Path,
) -> Result<PathBuf> {
    let userland = Userland::host(arch);
    let mut tree = Tree::new(&userland);
    for directory in ["/dev", "/proc", "/sys", "/run", "/mnt", "/modules"] {
        tree.directory(directory, 0o755)?;
    }
    tree.device("/dev/console", (5, 1))?;
    add_modules(&mut tree, kernel, MODULES)?;
    let programs = payload.programs;
    let strip = |program: &Path| strip(&arch.tool("strip"), program, directory);
    let init = strip(&programs.init)?;
    tree.program_as("/init", &init)?;
    tree.file("/root-device", 0o644, "/dev/vda".into())?;
    // Files that init copies to the disk.
    let on_disk = |path: &Path| PathBuf::from(format!("/payload{}", path.display()));
    let ours = [&programs.profiler, &programs.tests];
    for program in ours.into_iter().chain(&programs.workloads) {
        tree.program_as(on_disk(program), strip(program)?)?;
    }
    tree.program_as(on_disk(Path::new("/usr/local/sbin/guest-init")), &init)?;
    let package =
        fs::read(payload.package).with_context(|| payload.package.display().to_string())?;
    tree.file(on_disk(Path::new(PACKAGE)), 0o644, package)?;
    let unit = fs::read(workspace.root.join(UNIT)).with_context(|| format!("reading {UNIT}"))?;
    let path = Path::new("/etc/systemd/system/profiler-tests.service");
    tree.file(on_disk(path), 0o644, unit)?;
    let mut plan = vec![
        format!("env PROFILER_BIN={}", programs.profiler.display()),
        "env PROFILER_TEST_TIMEOUT_FACTOR=5".to_owned(),
        format!("env PROFILER_TEST_PACKAGE={PACKAGE}"),
        format!("test {}", programs.tests.display()),
    ];
    if filter.is_empty() {
        plan.push(format!("arg {NEED_SYSTEM}"));
    }
    // Exclude the other tests of the binary.
    let words = filter
        .iter()
        .map(|word| word.trim_start_matches(NEED_SYSTEM));
    plan.extend(words.map(|word| format!("arg {NEED_SYSTEM}{word}")));
    let plan = plan.join("\n");
    tree.file(on_disk(Path::new("/plan")), 0o644, plan.into())?;
    let path = directory.join("initramfs.cpio");
    tree.write(&path)?;
    Ok(path)
}
