//! What `cargo xtask test --all` remembers: tiers that passed, and the tree that they passed on.

use std::{
    collections::BTreeMap,
    fs, mem,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{shell, workspace::Workspace};

/// A tier that passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Passed {
    /// [`Tree::hash`] of the files on which the result depends.
    pub tree: String,
    pub took: Duration,
    /// Of it, building and installing.
    pub prepared: Duration,
    /// Number of tests and other figures.
    pub figures: String,
}

/// The results below `target/`.
pub struct Results {
    path: PathBuf,
    tiers: BTreeMap<String, Passed>,
}

impl Results {
    /// Reads the file; a missing or damaged one has no results.
    pub fn read(workspace: &Workspace) -> Self {
        Self::at(workspace.target.join("test-results.json"))
    }

    fn at(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let json: Value = serde_json::from_str(&text).unwrap_or_default();
        let tiers = json.as_object().into_iter().flatten();
        let tiers = tiers.filter_map(|(tier, passed)| Some((tier.clone(), Passed::parse(passed)?)));
        Self {
            tiers: tiers.collect(),
            path,
        }
    }

    /// The result of a tier on this tree.
    pub fn get(&self, tier: &str, tree: &str) -> Option<&Passed> {
        self.tiers.get(tier).filter(|passed| passed.tree == tree)
    }

    /// Records the result of a tier, `None` if it failed, and writes the file.
    pub fn set(&mut self, tier: &str, passed: Option<Passed>) -> Result<()> {
        // Other processes record results as well.
        *self = Self::at(mem::take(&mut self.path));
        match passed {
            Some(passed) => self.tiers.insert(tier.to_owned(), passed),
            None => self.tiers.remove(tier),
        };
        let tiers = self.tiers.iter();
        let json: Value = tiers
            .map(|(tier, passed)| (tier.clone(), passed.to_json()))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let temporary = self.path.with_extension("tmp");
        fs::write(&temporary, format!("{json:#}\n"))
            .and_then(|()| fs::rename(&temporary, &self.path))
            .with_context(|| format!("writing {}", self.path.display()))
    }
}

impl Passed {
    fn parse(json: &Value) -> Option<Self> {
        let seconds = |key: &str| Duration::try_from_secs_f64(json[key].as_f64()?).ok();
        Some(Self {
            tree: json["tree"].as_str()?.to_owned(),
            took: seconds("seconds")?,
            prepared: seconds("building_seconds")?,
            figures: json["figures"].as_str()?.to_owned(),
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "tree": self.tree,
            "seconds": self.took.as_secs_f64(),
            "building_seconds": self.prepared.as_secs_f64(),
            "figures": self.figures,
        })
    }
}

/// The files of the checkout, as git would commit them, in an index of their own.
pub struct Tree {
    root: PathBuf,
    index: PathBuf,
    /// Kernel and compiler.
    system: String,
}

impl Tree {
    /// Reads all files that git does not ignore.
    ///
    /// # Errors
    ///
    /// If the directory is no checkout of git.
    pub fn read(workspace: &Workspace) -> Result<Self> {
        let tree = Self {
            root: workspace.root.clone(),
            index: workspace.target.join("test-results.index"),
            system: shell::stdout(Command::new("uname").arg("-r"))?
                + &shell::stdout(Command::new("rustc").arg("-V"))?,
        };
        shell::run_quietly(tree.git().args(["add", "--all"]))?;
        Ok(tree)
    }

    fn git(&self) -> Command {
        let mut git = Command::new("git");
        git.current_dir(&self.root)
            .env("GIT_INDEX_FILE", &self.index)
            .stdin(Stdio::null());
        git
    }

    /// Hash of the system and of the files in these paths, of all files if there are none.
    pub fn hash(&self, paths: &[&str]) -> Result<String> {
        let files = shell::stdout(self.git().args(["ls-files", "--stage", "--"]).args(paths))?;
        let text = self.index.with_extension("files");
        let write = |path: &Path| fs::write(path, format!("{}{files}", self.system));
        write(&text).with_context(|| format!("writing {}", text.display()))?;
        let hash = shell::stdout(self.git().args(["hash-object", "--"]).arg(&text))?;
        Ok(hash.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn workspace(directory: &Path) -> Workspace {
        let target = directory.join("target");
        fs::create_dir(&target).expect("created");
        fs::write(directory.join(".gitignore"), "target\n").expect("written");
        let mut git = Command::new("git");
        shell::run_quietly(git.args(["init", "--quiet"]).arg(directory)).expect("git");
        Workspace {
            root: directory.to_owned(),
            target,
            rust_version: (1, 0),
        }
    }

    #[test]
    fn results_are_of_one_tree() {
        let directory = TempDir::new().expect("a directory");
        let workspace = workspace(directory.path());
        let passed = |tree: &str| Passed {
            tree: tree.to_owned(),
            took: Duration::from_secs(90),
            prepared: Duration::from_secs(60),
            figures: "7 tests".to_owned(),
        };
        let mut results = Results::read(&workspace);
        results.set("unit", Some(passed("a"))).expect("written");
        results.set("e2e", Some(passed("a"))).expect("written");
        results.set("e2e", None).expect("written");
        let results = Results::read(&workspace);
        assert_eq!(results.get("unit", "a"), Some(&passed("a")));
        assert_eq!(results.get("unit", "b"), None);
        assert_eq!(results.get("e2e", "a"), None);
        fs::write(&results.path, "{\"unit\": 1").expect("written");
        assert_eq!(Results::read(&workspace).get("unit", "a"), None);
    }

    #[test]
    fn hashes_depend_on_the_content_of_paths() {
        let directory = TempDir::new().expect("a directory");
        let workspace = workspace(directory.path());
        let write = |name: &str, text: &str| {
            fs::write(directory.path().join(name), text).expect("written");
        };
        let hashes = || {
            let tree = Tree::read(&workspace).expect("a checkout");
            [&[][..], &["*.rs"]].map(|paths| tree.hash(paths).expect("a hash"))
        };
        write("a.rs", "1");
        let first = hashes();
        assert_eq!(hashes(), first);
        write("b.md", "1");
        let second = hashes();
        assert!(second[0] != first[0] && second[1] == first[1]);
        write("a.rs", "2");
        let third = hashes();
        assert!(third[0] != second[0] && third[1] != second[1]);
        write("target/c.rs", "1");
        assert_eq!(hashes(), third);
        write("a.rs", "1");
        assert_eq!(hashes(), second);
    }
}
