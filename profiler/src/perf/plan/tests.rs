//! Plans for machines that are not at hand, on trees as their kernels show them.

use std::{fmt::Write as _, fs, path::Path};

use perfevents::Catalog;
use tempfile::TempDir;

use super::*;
use crate::host::Host;

/// A machine as /proc and /sys describe it.
struct Tree(TempDir);

impl Tree {
    /// Two sockets with a core of two threads each.
    fn new(model: u32, stepping: u32) -> Self {
        let tree = Self(TempDir::new().expect("a directory"));
        let mut cpuinfo = String::new();
        for cpu in 0..4 {
            let _ = write!(
                cpuinfo,
                "processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {model}\nstepping\t: {stepping}\n\n"
            );
            let directory = format!("sys/devices/system/cpu/cpu{cpu}");
            tree.file(
                &format!("{directory}/topology/physical_package_id"),
                &format!("{}", cpu / 2),
            );
            tree.file(&format!("{directory}/topology/core_id"), "0");
            tree.file(&format!("{directory}/node{}/cpulist", cpu / 2), "");
        }
        tree.file("proc/cpuinfo", &cpuinfo);
        tree.file("sys/devices/system/cpu/online", "0-3\n");
        tree
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn pmu(&self, name: &str, kind: u32, files: &[(&str, &str)]) {
        let directory = format!("sys/bus/event_source/devices/{name}");
        let core = [
            ("format/event", "config:0-7\n"),
            ("format/umask", "config:8-15\n"),
            ("format/cmask", "config:24-31\n"),
            ("format/offcore_rsp", "config1:0-63\n"),
        ];
        self.file(&format!("{directory}/type"), &format!("{kind}\n"));
        for (file, text) in core.iter().chain(files) {
            self.file(&format!("{directory}/{file}"), text);
        }
    }

    fn plan(&self, groups: Option<&str>, events: Option<&str>) -> Result<Plan, String> {
        let root: &Path = self.0.path();
        let host = Host::probe(root.join("proc"), root.join("sys"), Some("x".to_owned()));
        let catalog = Catalog::builtin().clone();
        let machine = Machine::read(&host, &catalog);
        let selection = Selection::new(groups, events, None).map_err(|error| error.to_string())?;
        Plan::new(&machine, &selection).map_err(|error| error.to_string())
    }
}

fn skylake() -> Tree {
    let tree = Tree::new(0x55, 4);
    tree.pmu("cpu", 4, &[]);
    for (number, kind) in [(0, 40), (1, 41)] {
        let events = [
            ("cpumask", "0,2\n"),
            ("events/cas_count_read", "event=0x04,umask=0x03\n"),
            ("events/cas_count_read.scale", "6.103515625e-5\n"),
        ];
        tree.pmu(&format!("uncore_imc_{number}"), kind, &events);
    }
    tree
}

fn words(perf_group: &PerfGroup) -> Vec<(u32, u64)> {
    let encodings = perf_group.events.iter().map(|event| event.encoding);
    encodings
        .map(|encoding| (encoding.kind, encoding.config[0]))
        .collect()
}

#[test]
fn memory_controllers_are_opened_once_for_each_socket() {
    let plan = skylake().plan(Some("MEM"), None).expect("a plan");
    assert!(
        plan.core.is_empty() && plan.notes.is_empty(),
        "{:?}",
        plan.notes
    );
    assert_eq!(plan.slots.len(), 2);
    let targets: Vec<_> = plan
        .parts
        .iter()
        .map(|part| {
            (
                part.cpu,
                part.socket,
                part.perf_group.events[0].encoding.kind,
            )
        })
        .collect();
    assert_eq!(targets, [(0, 0, 40), (2, 1, 40), (0, 0, 41), (2, 1, 41)]);
    for part in &plan.parts {
        assert_eq!(*part.perf_group.slots, [0, 1]);
        let codes: Vec<u64> = words(&part.perf_group)
            .into_iter()
            .map(|(_, code)| code)
            .collect();
        assert_eq!(codes, [0x304, 0xc04]);
    }
    let [group] = &plan.groups[..] else {
        panic!("{:?}", plan.groups)
    };
    assert!(group.node_batches && group.pmu.as_str() == "uncore_imc");
    assert_eq!(group.metrics.len(), 3);
}

#[test]
fn what_does_not_fit_is_split_and_said() {
    let tree = skylake();
    let plan = tree.plan(Some("FLOPS,FLOPS_DP"), None).expect("a plan");
    let sizes: Vec<_> = plan
        .core
        .iter()
        .map(|perf_group| perf_group.events.len())
        .collect();
    assert_eq!(sizes, [4, 1, 4]);
    let notes: Vec<_> = plan.notes.iter().map(Note::to_string).collect();
    assert_eq!(notes, [format!("FLOPS: {TURNS}")]);
    // Cycles have a fixed counter, unless the watchdog has it.
    let tma = |tree: &Tree| tree.plan(Some("TMA"), None).expect("a plan").core.len();
    assert_eq!(tma(&tree), 1);
    tree.file("proc/sys/kernel/nmi_watchdog", "1\n");
    assert_eq!(tma(&tree), 2);
    // Without SMT there are eight counters.
    for cpu in [1, 3] {
        tree.file(
            &format!("sys/devices/system/cpu/cpu{cpu}/topology/core_id"),
            "1",
        );
    }
    assert_eq!(tma(&tree), 1);
    let flops = tree.plan(Some("FLOPS"), None).expect("a plan");
    assert_eq!(flops.core.len(), 1);
}

#[test]
fn kinds_of_cores_are_counted_apart() {
    let tree = Tree::new(0x97, 2);
    tree.pmu("cpu_core", 4, &[("cpus", "0-1\n")]);
    tree.pmu("cpu_atom", 10, &[("cpus", "2-3\n")]);
    let plan = tree.plan(Some("HW"), None).expect("a plan");
    let pmus: Vec<_> = plan.groups.iter().map(|group| group.pmu.as_str()).collect();
    assert_eq!(pmus, ["cpu_atom", "cpu_core"]);
    let [atom, core] = &plan.core[..] else {
        panic!("{:?}", plan.core)
    };
    assert_eq!(core.cpus, Some(vec![0, 1]));
    assert_eq!(atom.cpus, Some(vec![2, 3]));
    // PERF_TYPE_HARDWARE with the type of the core's PMU in the upper half.
    assert!(
        words(core)
            .iter()
            .all(|(kind, code)| *kind == 0 && code >> 32 == 4)
    );
    assert!(
        words(atom)
            .iter()
            .all(|(kind, code)| *kind == 0 && code >> 32 == 10)
    );
    let own = tree.plan(Some("L2"), None).expect("a plan");
    let kinds: Vec<u32> = own
        .core
        .iter()
        .map(|perf_group| words(perf_group)[0].0)
        .collect();
    assert!(kinds.contains(&4), "{kinds:?}");
}

#[test]
fn events_by_hand_are_resolved_like_perf_does() {
    let tree = skylake();
    let plan = tree
        .plan(None, Some("{cycles:u,imc/cas_count_read/}"))
        .expect_err("two PMUs in braces");
    assert!(plan.contains("in braces"), "{plan}");
    let plan = tree
        .plan(
            None,
            Some("imc/cas_count_read/,{task-clock,cpu/event=0x3c/u,r1c7},cpu/event=0xc7,umask=2,name=SP/,l1d.replacement"),
        )
        .expect("a plan");
    assert_eq!(plan.parts.len(), 4);
    assert_eq!(plan.slots[0].scale, Some(6.103_515_625e-5));
    assert_eq!(plan.slots[0].pmu.as_str(), "uncore_imc");
    let perf_groups: Vec<_> = plan.core.iter().map(words).collect();
    assert_eq!(
        perf_groups,
        [
            vec![(1, 1), (4, 0x3c), (4, 0x1c7)],
            vec![(4, 0x2c7)],
            vec![(4, 0x151)]
        ]
    );
    assert!(!plan.core[0].events[1].kernel && plan.core[0].events[2].kernel);
    assert!(plan.groups.is_empty());
}

#[test]
fn a_machine_without_a_pmu_says_so_once() {
    let tree = Tree::new(0x55, 4);
    let plan = tree.plan(None, None).expect("a plan");
    assert!(plan.is_empty() && plan.slots.is_empty());
    assert_eq!(plan.notes.len(), 1);
    assert!(plan.why().contains("no PMU") && !plan.remedy.is_empty());
    let software = tree.plan(Some("SW"), None).expect("a plan");
    assert!(software.notes.is_empty() && software.core.len() == 1);
    // Cores that are counted, and a memory controller that is not there.
    tree.pmu("cpu", 4, &[]);
    let plan = tree.plan(Some("MEM,L2"), None).expect("a plan");
    assert_eq!(plan.why(), "MEM: there is no PMU uncore_imc_* here");
    assert_eq!(plan.core.len(), 1);
}

/// Broadwell counts misses of the last cache by its offcore registers, whose values go into `config1`.
#[test]
fn offcore_events_need_a_kernel_that_heeds_their_register() {
    let tree = Tree::new(0x4f, 1);
    tree.pmu("cpu", 4, &[]);
    let offcore = |plan: &Plan| {
        let events = plan.core.iter().flat_map(|perf_group| &perf_group.events);
        events.filter(|event| event.encoding.config[1] != 0).count()
    };
    let plan = tree.plan(Some("LLC"), None).expect("a plan");
    assert!(offcore(&plan) > 0 && plan.notes.is_empty(), "{plan:?}");
    // A kernel that does not know this CPU's registers.
    let format = "sys/bus/event_source/devices/cpu/format/offcore_rsp";
    fs::remove_file(tree.0.path().join(format)).expect("it goes");
    let plan = tree.plan(Some("LLC"), None).expect("a plan");
    assert_eq!(offcore(&plan), 0, "{plan:?}");
    let why = plan.why();
    assert!(why.contains("PMU cpu has no field offcore_rsp"), "{why}");
    let by_hand = tree.plan(None, Some("cpu/event=0xb7,umask=1,config1=0x6040007f7/"));
    let error = by_hand.expect_err("it would count all of them");
    assert!(error.contains("PMU cpu ignores config1"), "{error}");
}

/// An event of the kernel's own takes any `config1`, and ignores it.
#[test]
fn an_ignored_config1_is_noticed() {
    let clock = Encoding {
        kind: 1,
        config: [1, 7, 0, 0],
    };
    assert!(!heeds_config1(everywhere(clock)));
}

#[test]
fn a_count_whose_scale_is_missing_has_no_value() {
    let tree = Tree::new(0x55, 4);
    let events = [
        ("cpumask", "0,2\n"),
        ("events/energy-pkg", "event=0x02\n"),
        ("events/energy-pkg.unit", "Joules\n"),
    ];
    tree.pmu("power", 20, &events);
    for (groups, by_hand) in [(Some("ENERGY"), None), (None, Some("power/energy-pkg/"))] {
        let plan = tree.plan(groups, by_hand).expect("a plan");
        let mut count = Count::default();
        count.add(1000, 10, 10);
        assert_eq!(plan.slots[0].value(&count), None);
        let why = plan.why();
        assert!(
            why.contains("power does not tell what a count is worth"),
            "{why}"
        );
    }
}
