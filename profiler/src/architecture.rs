//! Compares the imports of this crate with the table of modules in `docs/architecture.md`, and
//! rejects cycles between modules.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

/// Names from the root of the crate; a file `mod.rs` is the module of its directory.
type Module = Vec<String>;

/// Modules that one module uses.
type Uses = BTreeMap<Module, BTreeSet<Module>>;

/// All modules with their code, without comments and test modules.
fn modules() -> BTreeMap<Module, String> {
    let mut modules = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    add_modules(&root, &Vec::new(), &mut modules);
    modules
}

fn add_modules(directory: &Path, parent: &Module, modules: &mut BTreeMap<Module, String>) {
    for entry in directory.read_dir().expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        let module = [&parent[..], &[name.to_string()]].concat();
        match &*name {
            "tests" | "scenarios" | "architecture" | "main" | "lib" => {}
            "mod" => {
                modules.insert(parent.clone(), code(&path));
            }
            _ if path.is_dir() => add_modules(&path, &module, modules),
            _ => {
                modules.insert(module, code(&path));
            }
        }
    }
}

fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("UTF-8");
    let lines = text.lines().map(|line| match line.trim_start() {
        comment if comment.starts_with("//") => "",
        _ => line,
    });
    let mut code: String = lines.flat_map(|line| [line, "\n"]).collect();
    while let Some(begin) = code.find("#[cfg(test)]\nmod ") {
        let end = match (code[begin..].find(" {\n"), code[begin..].find(";\n")) {
            (Some(block), semicolon) if semicolon.is_none_or(|semicolon| block < semicolon) => {
                code[begin..].find("\n}\n").map(|end| end + 2)
            }
            (_, semicolon) => semicolon,
        };
        let end = end.map_or(code.len(), |end| begin + end + 1);
        code.replace_range(begin..end, "");
    }
    code
}

/// Reads the paths of a use tree, `a::{b, c::d}`, or of an expression.
fn read_paths<'a>(text: &mut &'a str, prefix: &[&'a str], paths: &mut Vec<Vec<&'a str>>) {
    *text = text.trim_start();
    if let Some(rest) = text.strip_prefix('{') {
        *text = rest.trim_start();
        while !text.is_empty() && !text.starts_with('}') {
            read_paths(text, prefix, paths);
            // Also skips `as NAME`.
            let end = text.find([',', '}']).unwrap_or(text.len());
            *text = text[end..].trim_start_matches(',').trim_start();
        }
        *text = text.strip_prefix('}').unwrap_or(text);
        return;
    }
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = [prefix, &[name]].concat();
    match rest.strip_prefix("::") {
        Some(rest) if !rest.starts_with('<') => {
            *text = rest;
            read_paths(text, &path, paths);
        }
        _ => {
            *text = rest;
            paths.push(path);
        }
    }
}

/// Paths in the code of a module that begin in this crate, from its root.
fn paths_of(module: &Module, code: &str) -> Vec<Module> {
    let mut found = Vec::new();
    let bases = [
        ("crate::", &[][..]),
        ("self::", &module[..]),
        ("super::", &module[..module.len() - 1]),
    ];
    for (keyword, base) in bases {
        for (at, _) in code.match_indices(keyword) {
            let continues = |c: char| c.is_alphanumeric() || "_:$".contains(c);
            if code[..at].ends_with(continues) {
                continue;
            }
            let mut paths = Vec::new();
            read_paths(&mut &code[at + keyword.len()..], &[], &mut paths);
            for path in paths {
                let above = path.iter().take_while(|name| **name == "super").count();
                let below = path[above..].iter().filter(|name| **name != "self");
                let base = &base[..base.len().saturating_sub(above)];
                let below: Module = below.map(|name| (*name).to_owned()).collect();
                found.push([base, &below].concat());
            }
        }
    }
    found
}

/// For each module, the modules whose items it names.
fn uses() -> Uses {
    let modules = modules();
    // Exported macros are at the root.
    let mut macros: BTreeMap<&str, &Module> = BTreeMap::new();
    for (module, code) in &modules {
        for definition in code.split("#[macro_export]\nmacro_rules! ").skip(1) {
            let name = definition.split(' ').next().expect("a name");
            macros.insert(name, module);
        }
    }
    let mut uses = Uses::new();
    for (module, code) in &modules {
        let used = uses.entry(module.clone()).or_default();
        for path in paths_of(module, code) {
            if let [name] = &path[..]
                && let Some(module) = macros.get(&name[..])
            {
                used.insert((*module).clone());
            }
            let lengths = (1..=path.len()).rev();
            let mut prefixes = lengths.map(|length| path[..length].to_vec());
            used.extend(prefixes.find(|prefix| modules.contains_key(prefix)));
        }
    }
    uses
}

fn uses_between_children(uses: &Uses, parent: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let child = |module: &Module| {
        let child = module.strip_prefix(parent)?.first()?;
        Some(child.clone())
    };
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, used) in uses {
        let Some(user) = child(module) else { continue };
        let used = used.iter().filter_map(child);
        let used: Vec<_> = used.filter(|used| *used != user).collect();
        graph.entry(user).or_default().extend(used);
    }
    graph
}

/// Removes modules that use no other until only cycles and their users are left.
fn without_leaves(mut graph: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let known: BTreeSet<String> = graph.keys().cloned().collect();
        for used in graph.values_mut() {
            used.retain(|used| known.contains(used));
        }
        let before = graph.len();
        graph.retain(|_, used| !used.is_empty());
        if graph.len() == before {
            let edges = graph.iter().map(|(user, used)| {
                let used: Vec<_> = used.iter().map(String::as_str).collect();
                format!("{user} -> {}", used.join(", "))
            });
            return edges.collect();
        }
    }
}

/// Columns `module` and `may use` of the table in `docs/architecture.md`.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/architecture.md");
    let page = fs::read_to_string(page).expect("UTF-8");
    let names = |cell: &str| -> Vec<String> {
        let names = cell.split('`').skip(1).step_by(2);
        names.map(str::to_owned).collect()
    };
    let rows = page
        .lines()
        .skip_while(|line| !(line.starts_with("| module") && line.contains("| may use |")))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut table: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [modules, _, may_use] = cells[..] else {
            panic!("{row}");
        };
        for module in names(modules) {
            table.entry(module).or_default().extend(names(may_use));
        }
    }
    table
}

#[test]
fn imports_are_those_of_the_table_of_modules() {
    let documented = documented();
    let mut wrong = String::new();
    let graph = uses_between_children(&uses(), &[]);
    for (module, used) in &graph {
        let row: Vec<_> = used.iter().map(|name| format!("`{name}`")).collect();
        if documented.get(module) != Some(used) {
            let _ = writeln!(wrong, "`{module}` | {}", row.join(", "));
        }
    }
    assert!(
        wrong.is_empty(),
        "columns `module` and `may use` of docs/architecture.md should read:\n{wrong}"
    );
    let modules: Vec<_> = graph.keys().collect();
    assert_eq!(documented.keys().collect::<Vec<_>>(), modules);
}

#[test]
fn modules_have_no_cycles() {
    let uses = uses();
    let mut parents: BTreeSet<&[String]> = BTreeSet::new();
    for module in uses.keys() {
        parents.extend((0..module.len()).map(|length| &module[..length]));
    }
    for parent in parents {
        let cycles = without_leaves(uses_between_children(&uses, parent));
        assert!(
            cycles.is_empty(),
            "in `{}`: {}",
            parent.join("::"),
            cycles.join("; ")
        );
    }
}

/// Ways to open a file other than `support::regular_file`.
const OPENS: [&str; 8] = [
    "File::open(",
    "File::create(",
    "File::create_new(",
    "File::options(",
    "OpenOptions::",
    "fs::read(",
    "fs::read_to_string(",
    "openat(",
];

/// Modules that open files in these ways, and why they may: nobody else chooses what is there.
const MAY_OPEN: [(&str, &[&str]); 5] = [
    (
        "files of the kernel",
        &[
            "bpf::btf",
            "bpf::load",
            "ceilings",
            "ceilings::busy",
            "job::work::srun",
            "marks::socket",
            "output::dataset::foreign_file",
            "output::dataset::process_identity",
            "procfs",
            "service::connection",
            "session::witness",
            "sources::baseline",
            "sources::block_io",
            "sources::cpu::frequency",
            "sources::energy::meter",
            "sources::host",
            "sources::host::topology",
            "sources::spec",
            "support::own_cost",
            "support::resource_limits",
            "support::signals",
            "support::time_namespace",
            "tasks::slow_fields",
            "tasks::missed_estimate",
        ],
    ),
    ("a file of root", &["job::trust"]),
    (
        "directories of which only the mount is asked (O_PATH)",
        &["sources::filesystem::statfs_helper"],
    ),
    (
        "files in a directory that this process made",
        &["commands::report"],
    ),
    (
        "directories, and files that must not exist",
        &[
            "ceilings::file",
            "download::copy",
            "job::announcement",
            "output::dataset::files::directory",
            "output::retention",
            "output::status_file",
            "support::regular_file",
        ],
    ),
];

#[test]
fn files_of_others_are_opened_in_one_place() {
    let mut openers: BTreeSet<String> = BTreeSet::new();
    for (module, code) in modules() {
        let is_open = |(at, _)| !code[..at].ends_with(|c: char| c.is_alphanumeric());
        let opens = |open: &&str| code.match_indices(open).any(is_open);
        if OPENS.iter().any(opens) {
            let is_procfs = module[0] == "procfs";
            let depth = if is_procfs { 1 } else { module.len() };
            openers.insert(module[..depth].join("::"));
        }
    }
    let listed = MAY_OPEN.iter().flat_map(|(_, modules)| *modules);
    let listed: BTreeSet<String> = listed.map(|module| (*module).to_owned()).collect();
    assert_eq!(
        openers, listed,
        "use support::regular_file where a user can have placed a file"
    );
}

#[test]
fn paths_are_read() {
    let code = "use crate::{\n    a::{self, B, c::d as e},\n    f,\n};\nuse super::super::g;\n\
                let x = self::h::<u8>() + $crate::i::j;\n";
    let module = ["m", "n", "o"].map(str::to_owned).to_vec();
    let paths: Vec<String> = paths_of(&module, code)
        .iter()
        .map(|path| path.join("::"))
        .collect();
    assert_eq!(paths, ["a", "a::B", "a::c::d", "f", "m::n::o::h", "m::g"]);
}
