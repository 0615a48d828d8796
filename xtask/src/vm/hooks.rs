//! The hook of each BPF program on a kernel, from `profiler check --json`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Program whose use depends on the clocks of the machine, not on the kernel.
const OF_MACHINE: &str = "sched_wakeup";

/// The hooks of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Major and minor version, such as `6.1`.
    pub kernel: String,
    /// Hook by program; `None` without one.
    pub by_program: BTreeMap<String, Option<String>>,
    /// Reason by program, for programs without a hook.
    pub reasons: BTreeMap<String, String>,
}

impl Hooks {
    pub fn parse(check: &str) -> Result<Self> {
        let check: Value =
            serde_json::from_str(check).context("reading `profiler check --json`")?;
        let release = check["kernel"].as_str().context("no kernel release")?;
        let mut found = Self {
            kernel: major_minor(release).with_context(|| format!("the release {release}"))?,
            ..Self::default()
        };
        let programs = check["programs"].as_array();
        for program in programs.context("this kernel accepts no BPF programs")? {
            let text = |key: &str| program[key].as_str().map(str::to_owned);
            let name = text("program").context("a program without a name")?;
            if name == OF_MACHINE {
                continue;
            }
            match (text("hook"), text("why")) {
                (Some(hook), _) => {
                    found.reasons.remove(&name);
                    found.by_program.insert(name, Some(hook));
                }
                (None, why) => {
                    // A program can have several hooks, of which one was accepted.
                    if found.by_program.get(&name).is_none_or(Option::is_none) {
                        found.reasons.insert(name.clone(), why.unwrap_or_default());
                        found.by_program.insert(name, None);
                    }
                }
            }
        }
        Ok(found)
    }
}

/// `6.1` for `6.1.0-56-cloud-amd64`.
fn major_minor(release: &str) -> Option<String> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    let (major, minor) = (parts.next()?, parts.next()?);
    (!major.is_empty() && !minor.is_empty()).then(|| format!("{major}.{minor}"))
}

#[cfg(test)]
mod tests {
    use super::{Hooks, major_minor};

    #[test]
    fn hooks_are_read_from_the_report() {
        let check = r#"{ "kernel": "6.1.0-56-cloud-amd64", "programs": [
            { "program": "mark", "hook": "iter/task", "why": null },
            { "program": "sched_wakeup", "hook": "tp_btf/sched_wakeup", "why": null },
            { "program": "send", "hook": null, "why": "tp_btf/send: unknown" },
            { "program": "open", "hook": "fexit/open", "why": null },
            { "program": "open", "hook": null, "why": "fentry/open: refused" } ] }"#;
        let found = Hooks::parse(check).expect("valid");
        assert_eq!(found.kernel, "6.1");
        assert_eq!(found.by_program["mark"].as_deref(), Some("iter/task"));
        assert_eq!(found.by_program["send"], None);
        assert_eq!(found.by_program["open"].as_deref(), Some("fexit/open"));
        assert_eq!(found.reasons["send"], "tp_btf/send: unknown");
        assert_eq!((found.by_program.len(), found.reasons.len()), (3, 1));
        let denied = r#"{ "kernel": "6.1.0", "programs": null }"#;
        assert!(Hooks::parse(denied).is_err());
    }

    #[test]
    fn versions_of_releases() {
        assert_eq!(major_minor("6.18.44-x").as_deref(), Some("6.18"));
        assert_eq!(major_minor("7.0-rc1").as_deref(), Some("7.0"));
        assert_eq!(major_minor("next"), None);
    }
}
