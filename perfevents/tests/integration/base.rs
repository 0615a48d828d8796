//! Tables that inherit from a base.

use std::fs;

use perfevents::{Catalog, Origin, Source, Uarch};

const PARENT: &str = r#"
name = "Parent"
vendor = "Intel"
source = "a test"

[[match.cpuid]]
vendor = "GenuineIntel"
family = 6
models = [1]

[pmu.cpu]
counters = 4
notes = ["of the parent"]

[pmu."uncore_imc_*"]
counters = 4

[event.LOADS]
help = "Loads"
code = { event = 0xd0, umask = 0x81, cmask = 1 }
config = 0x10081d0
counters = ["0-3"]
sources = ["perfmon", "linux", "kernel", "libpfm4=MEM_LOADS", "likwid"]
errata = "E1"

[event.STORES]
help = "Stores"
code = { event = 0xd0, umask = 0x82 }
config = 0x82d0
sources = ["perfmon"]

[event.READS]
help = "Reads of memory"
pmu = "uncore_imc_*"
code = { event = 4 }
config = 4
sources = ["perfmon", "likwid"]

[group.L1]
help = "Loads and stores"
note = "of the parent"
events = { l = "LOADS", s = "STORES" }
metrics = [{ name = "l1_bw", formula = "(l + s) / time" }]

[group.MEM]
help = "Memory"
events = { r = "READS" }
"#;

/// A table with `PARENT` as base, a `match` of its own, and these keys and entries.
fn child(keys: &str, entries: &str) -> String {
    format!(
        "name = \"Child\"\nvendor = \"Intel\"\nsource = \"a test\"\nbase = \"parent\"\n{keys}\n\
         [[match.cpuid]]\nvendor = \"GenuineIntel\"\nfamily = 6\nmodels = [2]\n{entries}"
    )
}

const ALL: &str =
    "inherit_sources = [\"perfmon\", \"linux\", \"kernel\", \"libpfm4\", \"likwid\"]\n";

fn inherit(keys: &str, entries: &str) -> Uarch {
    let child = child(keys, entries);
    let catalog = Catalog::parse([("child", child.as_str()), ("parent", PARENT)]).expect("valid");
    catalog.get("child").expect("the child").clone()
}

fn error(files: &[(&str, &str)]) -> String {
    let result = Catalog::parse(files.iter().copied());
    result.expect_err("wrong").to_string()
}

#[test]
fn a_table_has_the_entries_of_its_base_but_its_own_identification() {
    let child = inherit(ALL, "");
    assert_eq!((child.id.as_str(), child.name.as_str()), ("child", "Child"));
    assert_eq!(child.matches.cpuid.len(), 1);
    assert!(child.matches.cpuid[0].models.contains(2));
    assert!(child.events.keys().eq(["LOADS", "READS", "STORES"]));
    assert!(child.groups.keys().eq(["L1", "MEM"]));
    assert!(child.pmus.keys().eq(["cpu", "uncore_imc_*"]));
    let loads = &child.events["LOADS"];
    assert_eq!(loads.help, "Loads");
    assert_eq!(loads.config, Some([0x100_81d0, 0, 0, 0]));
    assert!(loads.counters.is_some());
    assert_eq!(loads.errata, None, "an erratum is of one processor");
}

#[test]
fn inherited_events_keep_the_sources_that_cover_the_cpu() {
    let child = inherit("inherit_sources = [\"linux\", \"libpfm4\"]", "");
    let loads = &child.events["LOADS"];
    assert_eq!(loads.sources, [Source::Vendor, Source::Libpfm4]);
    assert_eq!(
        loads.origins[&Origin::Libpfm4].as_deref(),
        Some("MEM_LOADS")
    );
    assert!(loads.validated);
    let stores = &child.events["STORES"];
    assert_eq!(stores.sources, []);
    assert!(!stores.validated);
}

#[test]
fn an_entry_without_help_amends_the_inherited_one() {
    let child = inherit(
        ALL,
        "[event]\nSTORES.sources = [\"linux\", \"likwid\"]\nSTORES.validated = true\n\
         [event.LOADS]\ncode = { event = 0xd1 }\nconfig = 0xd1\nerrata = \"E2\"\n\
         [event.LINES]\nhelp = \"Lines\"\ncode = { event = 1 }\nconfig = 1\nsources = []\n\
         [group.L1]\nevents.s = \"LINES\"\nevents.t = \"STORES\"\n\
         [group.MEM]\nnote = \"of the child\"\nmetrics = [{ name = \"mem_bw\", formula = \"r\" }]\n",
    );
    let stores = &child.events["STORES"];
    assert_eq!(stores.help, "Stores");
    assert_eq!(stores.config, Some([0x82d0, 0, 0, 0]));
    assert_eq!(stores.sources, [Source::Vendor, Source::Likwid]);
    let loads = &child.events["LOADS"];
    assert_eq!(loads.code.len(), 1, "a code is replaced as a whole");
    assert_eq!(loads.errata.as_deref(), Some("E2"));
    assert_eq!(loads.sources.len(), 4);
    let events = &child.groups["L1"].events;
    assert_eq!(
        [&events["l"], &events["s"], &events["t"]],
        ["LOADS", "LINES", "STORES"]
    );
    assert_eq!(child.groups["L1"].note.as_deref(), Some("of the parent"));
    assert_eq!(child.groups["L1"].metrics.len(), 1);
    assert_eq!(child.groups["MEM"].help, "Memory");
    assert_eq!(child.groups["MEM"].metrics.len(), 1);
}

#[test]
fn a_new_code_drops_the_inherited_words() {
    let child = inherit(ALL, "[event.LOADS]\ncode = { event = 0xd1 }\n");
    assert_eq!(child.events["LOADS"].config, None);
    assert_eq!(child.encoding_problems().len(), 1);
}

#[test]
fn complete_entries_and_pmus_inherit_nothing() {
    let child = inherit(
        ALL,
        "[pmu.cpu]\ncounters = 8\n\
         [event.LOADS]\nhelp = \"All loads\"\ncode = { event = 1 }\nsources = [\"perfmon\"]\n\
         [group.L1]\nhelp = \"Loads\"\nevents = { a = \"LOADS\" }\n",
    );
    let loads = &child.events["LOADS"];
    assert_eq!(loads.help, "All loads");
    assert_eq!((loads.counters.is_none(), loads.config), (true, None));
    assert_eq!(loads.sources, [Source::Vendor]);
    assert!(child.groups["L1"].events.keys().eq(["a"]));
    assert_eq!(child.groups["L1"].note, None);
    assert!(child.groups["L1"].metrics.is_empty());
    assert_eq!(child.pmus["cpu"].counters, Some(8));
    assert!(child.pmus["cpu"].notes.is_empty());
}

#[test]
fn omitted_groups_take_their_events_and_pmus_along() {
    let child = inherit(&format!("{ALL}omit_groups = [\"MEM\"]"), "");
    assert!(child.groups.keys().eq(["L1"]));
    assert!(child.events.keys().eq(["LOADS", "STORES"]));
    assert!(child.pmus.keys().eq(["cpu"]));
    // An event of the file itself stays, for `problems` to report.
    let child = inherit(
        ALL,
        "[event]\nSTORES.fixed = 1\n[group.L1]\nevents.s = \"LOADS\"\n",
    );
    assert!(child.events.contains_key("STORES"));
}

#[test]
fn bases_have_bases_in_any_order_of_files() {
    let child = child(ALL, "[event]\nLOADS.fixed = 2\n");
    let grandchild = child
        .replace("\"parent\"", "\"child\"")
        .replace("\"Child\"", "\"Grandchild\"");
    let mut files = [
        ("a", grandchild.as_str()),
        ("child", &child),
        ("parent", PARENT),
    ];
    for _ in 0..files.len() {
        files.rotate_left(1);
        let catalog = Catalog::parse(files).expect("valid");
        let ids: Vec<_> = catalog.iter().map(|uarch| uarch.id.as_str()).collect();
        assert_eq!(ids, files.map(|(id, _)| id), "the order of the files");
        let loads = &catalog.get("a").expect("the grandchild").events["LOADS"];
        assert_eq!((loads.fixed, loads.takes), (Some(2), 1));
    }
}

#[test]
fn a_missing_base_and_a_cycle_are_errors() {
    let table = |base: &str| child(ALL, "").replace("\"parent\"", &format!("{base:?}"));
    let [a, b, c] = [table("b"), table("c"), table("a")];
    assert_eq!(
        error(&[("x", &a)]),
        "x.toml: base: there is no table b; `profiler events --cpus` lists the built-in ones"
    );
    assert_eq!(
        error(&[("x", &a), ("a", &a), ("b", &b), ("c", &c)]),
        "b.toml: base: b → c → a → b is a cycle"
    );
    assert_eq!(error(&[("a", &c)]), "a.toml: base: a → a is a cycle");
}

#[test]
fn errors_name_file_entry_and_key() {
    let root = PARENT.replace("[[match", "omit_groups = [\"MEM\"]\n[[match");
    assert_eq!(error(&[("x", &root)]), "x.toml: `omit_groups` needs `base`");
    let root = PARENT.replace("[[match", &format!("{ALL}[[match"));
    assert_eq!(
        error(&[("x", &root)]),
        "x.toml: `inherit_sources` needs `base`"
    );
    let root = PARENT.replace("help = \"Loads\"\n", "");
    assert_eq!(
        error(&[("x", &root)]),
        "x.toml: event LOADS: `help` is required, unless the entry changes one of the base"
    );
    for (keys, entries, expected) in [
        (
            "",
            "",
            "`inherit_sources` is missing: list the sources of parent that cover this CPU, too",
        ),
        (
            &format!("{ALL}omit_groups = [\"L9\"]"),
            "",
            "omit_groups: parent has no group L9",
        ),
        (
            ALL,
            "[event.LAODS]\nfixed = 1\n",
            "event LAODS: `help` is required, unless the entry changes one of the base",
        ),
        (
            ALL,
            "[event.X]\nhelp = \"X\"\n",
            "event X: `sources` is required, unless the entry changes one of the base",
        ),
        (
            ALL,
            "[event.LOADS]\nconfig1 = 1\n",
            "event LOADS: `config1` needs `config`",
        ),
        (
            ALL,
            "[event.STORES]\nvalidated = true\n",
            "event STORES: `validated` contradicts `sources`, with 1 independent ones",
        ),
        (
            ALL,
            "[group.L9]\nevents.a = \"LOADS\"\n",
            "group L9: `help` is required, unless the entry changes one of the base",
        ),
        (
            ALL,
            "[group.L9]\nhelp = \"L9\"\n",
            "group L9: `events` is required, unless the entry changes one of the base",
        ),
    ] {
        let child = child(keys, entries);
        assert_eq!(
            error(&[("child", &child), ("parent", PARENT)]),
            format!("child.toml: {expected}")
        );
    }
    let lines = |sources: &str| {
        let child = child(ALL, &format!("[event]\nLOADS.sources = {sources}\n"));
        error(&[("child", &child), ("parent", PARENT)])
    };
    let unknown = lines("[\"perfmom\"]");
    assert!(
        unknown.contains("line 12") && unknown.contains("unknown source \"perfmom\"; known are"),
        "{unknown}"
    );
    let twice = lines("[\"likwid\", \"likwid=X\"]");
    assert!(twice.contains("source likwid is listed twice"), "{twice}");
}

/// Files of a directory may amend each other and the built-in tables.
#[test]
fn bases_of_a_directory_are_its_files_or_built_in() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |id: &str, base: &str| {
        let text = child(ALL, "[pmu.cpu]\ncounters = 77\n");
        let text = text.replace("\"parent\"", &format!("{base:?}"));
        fs::write(directory.path().join(format!("{id}.toml")), text).expect("written");
    };
    write("mine", "skx");
    write("skx", "skx");
    write("nested", "mine");
    let read = Catalog::read(directory.path()).expect("valid");
    let builtin = Catalog::builtin().get("skx").expect("built in");
    for uarch in read.iter() {
        assert_eq!(uarch.pmus["cpu"].counters, Some(77), "{}", uarch.id);
        assert!(
            uarch.groups.keys().eq(builtin.groups.keys()),
            "{}",
            uarch.id
        );
    }
    let catalog = Catalog::builtin().clone().overridden_by(read);
    assert_eq!(catalog.get("skx").expect("replaced").name, "Child");
    // Built-in tables keep their base.
    let clx = catalog.get("clx").expect("built in");
    assert_eq!(clx.pmus["cpu"].counters, Some(4));
}

/// The TOML examples of docs/perfevents.md: a complete table, and one with a base.
#[test]
fn examples_of_the_documentation_are_valid() {
    let page = include_str!("../../../docs/perfevents.md");
    let examples: Vec<&str> = page
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    let directory = tempfile::tempdir().expect("a directory");
    for (id, example) in ["complete", "inherits"].iter().zip(&examples) {
        let file = directory.path().join(format!("{id}.toml"));
        fs::write(file, example).expect("written");
    }
    assert_eq!(examples.len(), 2);
    let catalog = Catalog::read(directory.path()).unwrap_or_else(|error| panic!("{error}"));
    for uarch in catalog.iter() {
        let mut problems = uarch.problems(Catalog::meanings());
        problems.extend(uarch.encoding_problems());
        assert_eq!(problems, [""; 0], "{}", uarch.id);
    }
}
