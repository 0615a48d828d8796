//! The architectures that the project is built for and tested on.

use anyhow::{Context as _, Result};

/// What one is called by each tool, and how it is emulated.
#[derive(Debug, PartialEq, Eq)]
pub struct Arch {
    /// By Rust and by QEMU.
    pub name: &'static str,
    /// By Debian.
    pub debian: &'static str,
    /// What a program is built for.
    pub target: &'static str,
    /// What the names of its C compiler and of its directories of libraries begin with.
    pub gnu: &'static str,
    /// Debian's packages of a C compiler on other machines, and of its C library.
    pub cross: [&'static str; 2],
    /// The emulator, and Debian's package of it.
    pub qemu: (&'static str, &'static str),
    /// Which machine is emulated, with which CPU.
    pub machine: &'static [&'static str],
    /// What is added, or said otherwise, where QEMU emulates the CPU.
    pub emulation: &'static [&'static str],
    /// The counters of hardware events that the emulated CPU has, as the kernel calls them.
    pub counters: Option<&'static str>,
    /// The serial line that goes to our stdout.
    pub console: &'static str,
    /// Options of its kernel.
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
    // A busy host does not run the guest for milliseconds, and the kernel panics when its timer does not tick meanwhile.
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
    // An instruction takes a nanosecond of the guest's time, and with that it is counted: without, only cycles are. A guest
    // that sleeps does not wait. To sign pointers would take longer than all else.
    emulation: &["-icount", "shift=0,sleep=off", "-cpu", "max,pauth=off"],
    counters: Some("armv8_pmuv3"),
    console: "ttyAMA0",
    kernel_options: "",
};

impl Arch {
    /// That of this machine.
    pub fn host() -> Result<&'static Self> {
        let name = std::env::consts::ARCH;
        Self::parse(name).with_context(|| format!("no guest can be built on {name}"))
    }

    /// By its name.
    pub fn parse(name: &str) -> Option<&'static Self> {
        ALL.into_iter().find(|arch| arch.name == name)
    }

    pub fn names() -> [&'static str; 2] {
        ALL.map(|arch| arch.name)
    }

    pub fn is_host(&self) -> bool {
        self.name == std::env::consts::ARCH
    }

    /// One of the GNU tools for its programs.
    pub fn tool(&self, name: &str) -> String {
        if self.is_host() {
            name.to_owned()
        } else {
            format!("{}-{name}", self.gnu)
        }
    }
}
