//! The supported architectures.

use anyhow::{Context as _, Result};

/// Names of an architecture in each tool, and its emulation.
#[derive(Debug, PartialEq, Eq)]
pub struct Arch {
    /// Name in Rust and QEMU.
    pub name: &'static str,
    /// Name in Debian.
    pub debian: &'static str,
    /// Rust's target.
    pub target: &'static str,
    /// GNU triplet: prefix of the C compiler and name of the library directories.
    pub gnu: &'static str,
    /// Debian's packages of the cross compiler and the C library.
    pub cross: [&'static str; 2],
    /// The emulator and its Debian package.
    pub qemu: (&'static str, &'static str),
    /// QEMU's options for machine and CPU.
    pub machine: &'static [&'static str],
    /// QEMU's options with TCG, which override [`Self::machine`].
    pub emulation: &'static [&'static str],
    /// The kernel's name of the emulated PMU.
    pub counters: Option<&'static str>,
    /// The kernel's name of the serial console.
    pub console: &'static str,
    pub kernel_options: &'static str,
}

const ALL: [&Arch; 2] = [&X86_64, &AARCH64];

const X86_64: Arch = Arch {
    name: "x86_64",
    debian: "amd64",
    target: "x86_64-unknown-linux-gnu",
    gnu: "x86_64-linux-gnu",
    cross: ["gcc-x86-64-linux-gnu", "libc6-dev-amd64-cross"],
    qemu: ("qemu-system-x86_64", "qemu-system-x86"),
    machine: &["-cpu", "max"],
    emulation: &[],
    counters: None,
    console: "ttyS0",
    // A busy host may not run the guest for milliseconds; the kernel would panic without timer
    // interrupts.
    kernel_options: "no_timer_check",
};

const AARCH64: Arch = Arch {
    name: "aarch64",
    debian: "arm64",
    target: "aarch64-unknown-linux-gnu",
    gnu: "aarch64-linux-gnu",
    cross: ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
    qemu: ("qemu-system-aarch64", "qemu-system-arm"),
    machine: &["-M", "virt", "-cpu", "max"],
    // Each instruction advances the guest's clock by 1 ns and is counted; without -icount, the PMU
    // counts only cycles. Sleeps of the guest take no time. Pointer authentication is slow to
    // emulate.
    emulation: &["-icount", "shift=0,sleep=off", "-cpu", "max,pauth=off"],
    counters: Some("armv8_pmuv3"),
    console: "ttyAMA0",
    kernel_options: "",
};

impl Arch {
    /// The architecture of this machine.
    pub fn host() -> Result<&'static Self> {
        let name = std::env::consts::ARCH;
        Self::parse(name).with_context(|| format!("guests cannot be built on {name}"))
    }

    /// The architecture with this name.
    pub fn parse(name: &str) -> Option<&'static Self> {
        ALL.into_iter().find(|arch| arch.name == name)
    }

    pub fn names() -> [&'static str; 2] {
        ALL.map(|arch| arch.name)
    }

    pub fn is_host(&self) -> bool {
        self.name == std::env::consts::ARCH
    }

    /// Name of a GNU tool for programs of the architecture.
    pub fn tool(&self, name: &str) -> String {
        if self.is_host() {
            name.to_owned()
        } else {
            format!("{}-{name}", self.gnu)
        }
    }

    /// Debian's package of those that read and change programs.
    pub fn binutils(&self) -> String {
        if self.is_host() {
            "binutils".to_owned()
        } else {
            format!("binutils-{}", self.gnu.replace('_', "-"))
        }
    }
}
