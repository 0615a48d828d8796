//! The BPF programs of a process, from `/proc/PID/fdinfo`: descriptors of programs have the cost,
//! those of links the hook.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result};

#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub name: String,
    pub hook: Option<Hook>,
    pub runs: u64,
    pub run_ns: u64,
}

/// The hook of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Hook {
    RawTracepoint(String),
    /// Entry or exit of a kernel function, identified by its BTF object and id.
    Function {
        attach_type: u32,
        btf: u32,
        id: u32,
    },
}

/// All programs of a process, by program id.
pub fn read(pid: u32) -> Result<BTreeMap<u64, Loaded>> {
    let dir = format!("/proc/{pid}/fdinfo");
    let entries = fs::read_dir(&dir).with_context(|| format!("reading {dir}"))?;
    // A descriptor may have been closed meanwhile.
    let texts: Vec<String> = entries
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok())
        .collect();
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    Ok(parse(&texts, &symbols))
}

fn parse(texts: &[String], symbols: &str) -> BTreeMap<u64, Loaded> {
    let mut programs = BTreeMap::new();
    let mut hooks = BTreeMap::new();
    for info in texts.iter().map(|text| Info(text)) {
        let Some(id) = info.number("prog_id") else {
            continue;
        };
        if let (Some(run_ns), Some(runs)) = (info.number("run_time_ns"), info.number("run_cnt")) {
            let name = info
                .field("prog_tag")
                .and_then(|tag| name_of(tag, symbols))
                .unwrap_or_else(|| format!("program {id}"));
            let program = Loaded {
                name,
                hook: None,
                runs,
                run_ns,
            };
            programs.insert(id, program);
        } else if let Some(hook) = info.hook() {
            hooks.insert(id, hook);
        }
    }
    for (id, hook) in hooks {
        if let Some(program) = programs.get_mut(&id) {
            // Programs with the same code have the same tag and are distinguished by their hooks.
            if let Hook::RawTracepoint(name) = &hook {
                program.name.clone_from(name);
            }
            program.hook = Some(hook);
        }
    }
    programs
}

/// The name from the kernel symbol `bpf_prog_<tag>_<name>`.
fn name_of(tag: &str, symbols: &str) -> Option<String> {
    let prefix = format!("bpf_prog_{tag}_");
    let symbol = symbols.split_whitespace();
    let mut names = symbol.filter_map(|word| word.strip_prefix(&prefix));
    names.next().map(str::to_owned)
}

struct Info<'a>(&'a str);

impl Info<'_> {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }

    fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        self.field(name)?.parse().ok()
    }

    fn hook(&self) -> Option<Hook> {
        if let Some(name) = self.field("tp_name") {
            return Some(Hook::RawTracepoint(name.to_owned()));
        }
        Some(Hook::Function {
            attach_type: self.number("attach_type")?,
            btf: self.number("target_obj_id")?,
            id: self.number("target_btf_id")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Hook, parse};

    #[test]
    fn names_and_hooks() {
        let texts = [
            "prog_tag:\tab\nprog_id:\t1\nrun_time_ns:\t900\nrun_cnt:\t9\n",
            "prog_tag:\tcd\nprog_id:\t2\nrun_time_ns:\t0\nrun_cnt:\t0\n",
            "prog_tag:\tef\nprog_id:\t3\nrun_time_ns:\t0\nrun_cnt:\t0\n",
            "link_type:\traw_tracepoint\nprog_tag:\tab\nprog_id:\t1\ntp_name:\tsched_wakeup\n",
            "prog_id:\t3\nattach_type:\t25\ntarget_obj_id:\t1\ntarget_btf_id:\t77\n",
            "pos:\t0\n",
        ];
        let symbols =
            "ffffffff8 t bpf_prog_ab_wakeup\t[bpf]\nffffffff9 t bpf_prog_cd_sample\t[bpf]";
        let programs = parse(&texts.map(str::to_owned), symbols);
        let [first, second, third] = [1, 2, 3].map(|id| programs[&id].clone());
        assert_eq!((first.runs, first.run_ns), (9, 900));
        assert_eq!(first.name, "sched_wakeup");
        assert_eq!(first.hook, Some(Hook::RawTracepoint("sched_wakeup".into())));
        assert_eq!((second.name.as_str(), second.hook), ("sample", None));
        let function = Hook::Function {
            attach_type: 25,
            btf: 1,
            id: 77,
        };
        assert_eq!(
            (third.name.as_str(), third.hook),
            ("program 3", Some(function))
        );
    }
}
