//! Plans for other machines, from fixtures of their procfs and sysfs.

use std::{fmt::Write as _, fs, path::Path};

use perfevents::Catalog;
use tempfile::TempDir;

use super::{probe::checks_config1, *};
use crate::{
    host::Host,
    perf::{Error, Selection},
};

/// A procfs and a sysfs.
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

    fn plan(&self, groups: Option<&str>, events: Option<&str>) -> Result<Plan, Error> {
        let root: &Path = self.0.path();
        let host = Host::probe(root.join("proc"), root.join("sys"), Some("x".to_owned()));
        let catalog = Catalog::builtin().clone();
        let machine = Machine::read(&host, &catalog);
        let selection = Selection::new(groups, events, None)?;
        Plan::new(&machine, &selection)
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

fn codes(group: &PerfGroup) -> Vec<(u32, u64)> {
    let encodings = group.attributes.iter().map(|event| event.encoding);
    encodings
        .map(|encoding| (encoding.kind, encoding.config[0]))
        .collect()
}

#[test]
fn memory_controllers_are_opened_once_per_socket() {
    let plan = skylake().plan(Some("MEM"), None).expect("a plan");
    assert!(
        plan.core_groups.is_empty() && plan.notes.is_empty(),
        "{:?}",
        plan.notes
    );
    assert_eq!(plan.events.len(), 2);
    let opened: Vec<_> = plan
        .node_groups
        .iter()
        .map(|node| {
            let kind = node.group.attributes[0].encoding.kind;
            (node.cpu, node.socket, kind)
        })
        .collect();
    assert_eq!(opened, [(0, 0, 40), (2, 1, 40), (0, 0, 41), (2, 1, 41)]);
    for node in &plan.node_groups {
        assert_eq!(*node.group.indices, [0, 1]);
        let codes: Vec<u64> = codes(&node.group)
            .into_iter()
            .map(|(_, code)| code)
            .collect();
        assert_eq!(codes, [0x304, 0xc04]);
    }
    let [group] = &plan.groups[..] else {
        panic!("{:?}", plan.groups)
    };
    assert!(group.is_node_wide && group.pmu.as_str() == "uncore_imc");
    assert_eq!(group.metrics.len(), 3);
}

#[test]
fn groups_that_do_not_fit_are_split_and_reported() {
    let tree = skylake();
    let plan = tree.plan(Some("FLOPS,FLOPS_DP"), None).expect("a plan");
    let sizes: Vec<_> = plan
        .core_groups
        .iter()
        .map(|group| group.attributes.len())
        .collect();
    assert_eq!(sizes, [4, 1, 4]);
    let notes: Vec<_> = plan.notes.iter().map(Note::to_string).collect();
    assert_eq!(notes, [format!("FLOPS: {MULTIPLEXED}")]);
    // Cycles have a fixed counter, unless the NMI watchdog occupies it.
    let tma = |tree: &Tree| {
        tree.plan(Some("TMA"), None)
            .expect("a plan")
            .core_groups
            .len()
    };
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
    assert_eq!(flops.core_groups.len(), 1);
}

/// Two off-core events and another four need six counters: four of Skylake-SP's with two threads
/// per core are too few, eight without them are enough.
#[test]
fn default_groups_that_do_not_fit_are_left_out_and_reported() {
    let tree = skylake();
    let tables = tree.0.path().join("tables");
    fs::create_dir_all(&tables).expect("made");
    let group = "\
        [group.LLC]\n\
        events.c = \"FP_ARITH_INST_RETIRED.SCALAR_SINGLE\"\n\
        events.d = \"FP_ARITH_INST_RETIRED.SCALAR_DOUBLE\"\n\
        events.e = \"L1D.REPLACEMENT\"\n\
        events.f = \"L1D.M_EVICT\"\n\
        [[group.LLC.metrics]]\n\
        name = \"llc_miss_local_bw\"\n\
        formula = \"loc + rem + c + d + e + f\"\n";
    let table = format!("base = \"skx\"\ninherit_sources = []\n{group}");
    let head = "name = \"Skylake-SP\"\nvendor = \"Intel\"\nsource = \"-\"\n";
    let cpus = "[[match.cpuid]]\nvendor = \"GenuineIntel\"\nfamily = 6\nmodels = [0x55]\n\
                steppings = [\"0-4\"]\n";
    let (base, group) = table.split_once("[group").expect("a group");
    let text = format!("{head}{base}{cpus}[group{group}");
    fs::write(tables.join("skx.toml"), text).expect("written");
    let plan = |groups: Option<&str>| {
        let root = tree.0.path();
        let host = Host::probe(root.join("proc"), root.join("sys"), Some("x".to_owned()));
        let selection = Selection::new(groups, None, Some(tables.clone())).expect("valid");
        let catalog = selection.catalog(&host).expect("valid tables");
        let machine = Machine::read(&host, &catalog);
        Plan::new(&machine, &selection).expect("a plan")
    };
    let has_llc = |plan: &Plan| plan.groups.iter().any(|group| group.name.as_str() == "LLC");
    let by_default = plan(None);
    assert!(!has_llc(&by_default));
    let reasons = by_default.reasons();
    assert!(
        reasons.contains(&format!("LLC: {NOT_BY_DEFAULT}")),
        "{reasons}"
    );
    let named = plan(Some("+LLC"));
    assert!(
        has_llc(&named)
            && named
                .reasons()
                .contains("LLC: more events than counters, multi")
    );
    for cpu in [1, 3] {
        let core = format!("sys/devices/system/cpu/cpu{cpu}/topology/core_id");
        tree.file(&core, "1");
    }
    assert!(has_llc(&plan(None)), "eight counters");
}

#[test]
fn kinds_of_cores_are_counted_separately() {
    let tree = Tree::new(0x97, 2);
    tree.pmu("cpu_core", 4, &[("cpus", "0-1\n")]);
    tree.pmu("cpu_atom", 10, &[("cpus", "2-3\n")]);
    let plan = tree.plan(Some("HW"), None).expect("a plan");
    let pmus: Vec<_> = plan.groups.iter().map(|group| group.pmu.as_str()).collect();
    assert_eq!(pmus, ["cpu_atom", "cpu_core"]);
    let [atom, core] = &plan.core_groups[..] else {
        panic!("{:?}", plan.core_groups)
    };
    assert_eq!(core.cpus, Some(vec![0, 1]));
    assert_eq!(atom.cpus, Some(vec![2, 3]));
    // PERF_TYPE_HARDWARE with the type of the core's PMU in the upper half.
    assert!(
        codes(core)
            .iter()
            .all(|(kind, code)| *kind == 0 && code >> 32 == 4)
    );
    assert!(
        codes(atom)
            .iter()
            .all(|(kind, code)| *kind == 0 && code >> 32 == 10)
    );
    let own = tree.plan(Some("L2"), None).expect("a plan");
    let kinds: Vec<u32> = own
        .core_groups
        .iter()
        .map(|group| codes(group)[0].0)
        .collect();
    assert!(kinds.contains(&4), "{kinds:?}");
}

#[test]
fn custom_events_are_resolved_as_in_perf() {
    let tree = skylake();
    let error = tree
        .plan(None, Some("{cycles:u,imc/cas_count_read/}"))
        .expect_err("two PMUs in braces");
    assert!(matches!(error, Error::MixedPmus { .. }), "{error}");
    let plan = tree
        .plan(
            None,
            Some("imc/cas_count_read/,{task-clock,cpu/event=0x3c/u,r1c7},cpu/event=0xc7,umask=2,name=SP/,l1d.replacement"),
        )
        .expect("a plan");
    assert_eq!(plan.node_groups.len(), 4);
    assert_eq!(plan.events[0].scale, Some(6.103_515_625e-5));
    assert_eq!(plan.events[0].pmu.as_str(), "uncore_imc");
    let groups: Vec<_> = plan.core_groups.iter().map(codes).collect();
    assert_eq!(
        groups,
        [
            vec![(1, 1), (4, 0x3c), (4, 0x1c7)],
            vec![(4, 0x2c7)],
            vec![(4, 0x151)]
        ]
    );
    assert!(!plan.core_groups[0].attributes[1].kernel && plan.core_groups[0].attributes[2].kernel);
    assert!(plan.groups.is_empty());
}

#[test]
fn missing_pmu_is_noted_once() {
    let tree = Tree::new(0x55, 4);
    let plan = tree.plan(None, None).expect("a plan");
    assert!(plan.is_empty() && plan.events.is_empty());
    assert_eq!(plan.notes.len(), 1);
    assert!(plan.reasons().contains("no PMU") && !plan.remedy.is_empty());
    let software = tree.plan(Some("SW"), None).expect("a plan");
    assert!(software.notes.is_empty() && software.core_groups.len() == 1);
    // A core PMU without an uncore PMU.
    tree.pmu("cpu", 4, &[]);
    let plan = tree.plan(Some("MEM,L2"), None).expect("a plan");
    assert_eq!(plan.reasons(), "MEM: PMU uncore_imc_* not found");
    assert_eq!(plan.core_groups.len(), 1);
}

/// On Broadwell, misses of the last cache are offcore events, with a register value in `config1`.
#[test]
fn offcore_events_need_support_of_the_kernel() {
    let tree = Tree::new(0x4f, 1);
    tree.pmu("cpu", 4, &[]);
    let offcore = |plan: &Plan| {
        let events = plan.core_groups.iter().flat_map(|group| &group.attributes);
        events.filter(|event| event.encoding.config[1] != 0).count()
    };
    let plan = tree.plan(Some("LLC"), None).expect("a plan");
    assert!(offcore(&plan) > 0 && plan.notes.is_empty(), "{plan:?}");
    // A kernel without support for the registers of this CPU.
    let format = "sys/bus/event_source/devices/cpu/format/offcore_rsp";
    fs::remove_file(tree.0.path().join(format)).expect("it goes");
    let plan = tree.plan(Some("LLC"), None).expect("a plan");
    assert_eq!(offcore(&plan), 0, "{plan:?}");
    let reasons = plan.reasons();
    assert!(
        reasons.contains("PMU cpu has no field offcore_rsp"),
        "{reasons}"
    );
    let custom = tree.plan(None, Some("cpu/event=0xb7,umask=1,config1=0x6040007f7/"));
    let error = custom
        .expect_err("it would count all responses")
        .to_string();
    assert!(error.contains("PMU cpu ignores config1"), "{error}");
}

/// The kernel ignores `config1` of software events.
#[test]
fn ignored_config1_is_detected() {
    let clock = Encoding {
        kind: 1,
        config: [1, 7, 0, 0],
    };
    assert!(!checks_config1(user_and_kernel(clock)));
}

#[test]
fn counts_without_scale_have_no_value() {
    let tree = Tree::new(0x55, 4);
    let events = [
        ("cpumask", "0,2\n"),
        ("events/energy-pkg", "event=0x02\n"),
        ("events/energy-pkg.unit", "Joules\n"),
    ];
    tree.pmu("power", 20, &events);
    for (groups, custom) in [(Some("ENERGY"), None), (None, Some("power/energy-pkg/"))] {
        let plan = tree.plan(groups, custom).expect("a plan");
        let mut count = Count::default();
        count.add(1000, 10, 10);
        assert_eq!(plan.events[0].value(&count), None);
        let reasons = plan.reasons();
        assert!(reasons.contains("PMU power has no scale"), "{reasons}");
    }
}

#[test]
fn energy_meters_are_omitted() {
    let tree = skylake();
    let power = [
        ("cpumask", "0,2\n"),
        ("events/energy-pkg", "event=0x02\n"),
        ("events/energy-pkg.scale", "2.3283064365386962890625e-10\n"),
    ];
    tree.pmu("power", 20, &power);
    let events = Some("power/energy-pkg/,imc/cas_count_read/");
    let mut plan = tree.plan(None, events).expect("known events");
    let pmus = |plan: &Plan| {
        let groups = plan
            .node_groups
            .iter()
            .flat_map(|node| node.group.indices.to_vec());
        let pmus = groups.map(|index| plan.events[index].pmu.as_str().to_owned());
        pmus.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(pmus(&plan).len(), 2);
    plan.omit_energy("hidden");
    let kept = pmus(&plan);
    assert!(
        kept.len() == 1 && kept.iter().all(|pmu| pmu.starts_with("uncore_imc")),
        "{kept:?}"
    );
    assert!(plan.reasons().contains("hidden"), "{}", plan.reasons());
}
