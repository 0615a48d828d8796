//! The pages of the manual and their order: the README, the pages that it lists by task, and below a
//! page those in the directory of its name.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use super::links::{self, Page};

const START: &str = "README.md";
/// The heading above the table of tasks and pages.
const INDEX: &str = "Find your way";

pub struct Manual {
    pub parts: Vec<Part>,
    /// By their paths below the root of the project.
    pub pages: BTreeMap<String, Page>,
}

/// Pages for a task.
#[derive(Debug, PartialEq)]
pub struct Part {
    pub title: String,
    pub chapters: Vec<Chapter>,
}

#[derive(Debug, PartialEq)]
pub struct Chapter {
    pub title: String,
    /// Below the root of the project.
    pub path: String,
    pub below: Vec<Self>,
}

impl Manual {
    /// Reads the pages below the root of the project.
    ///
    /// # Errors
    ///
    /// If a page cannot be read, a page below docs/ is not listed, or a link leads nowhere.
    pub fn read(root: &Path) -> Result<Self> {
        let text =
            |path: &str| fs::read_to_string(root.join(path)).with_context(|| path.to_owned());
        let mut parts = parts(&text(START)?);
        ensure!(!parts.is_empty(), "{START} has no table below `{INDEX}`");
        for chapter in parts.iter_mut().flat_map(|part| &mut part.chapters) {
            let directory = chapter.path.trim_end_matches(".md").to_owned() + "/";
            if root.join(&directory).is_dir() {
                chapter.below = chapters(&text(&chapter.path)?, &chapter.path);
                chapter.below.retain(|it| it.path.starts_with(&directory));
            }
        }
        let listed = parts.iter().flat_map(|part| &part.chapters);
        let listed = listed.flat_map(|chapter| [chapter].into_iter().chain(&chapter.below));
        let listed = listed.map(|chapter| &*chapter.path);
        let pages = [START].into_iter().chain(listed);
        let pages = pages.map(|path| Ok((path.to_owned(), Page::of_markdown(&text(path)?))));
        let pages: BTreeMap<_, _> = pages.collect::<Result<_>>()?;
        let mut wrong = links::broken(root, &pages);
        for path in markdown_below(root, "docs")? {
            if !pages.contains_key(&path) {
                wrong.push(format!("{path}: not listed in {START}"));
            }
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(Self { parts, pages })
    }

    /// Paths of other files that the pages link to.
    pub fn files(&self) -> impl Iterator<Item = String> {
        let pages = self.pages.iter();
        let targets = pages.flat_map(|(path, page)| {
            let links = page.links.iter();
            links.filter_map(move |link| links::target(path, link))
        });
        targets.filter(|target| !self.pages.contains_key(target))
    }

    /// The table of contents in the format of mdBook.
    pub fn summary(&self) -> String {
        let mut summary = format!("# Contents\n\n[profiler]({START})\n");
        for Part { title, chapters } in &self.parts {
            let _ = writeln!(summary, "\n# {title}\n");
            for chapter in chapters {
                let _ = writeln!(summary, "- [{}]({})", chapter.title, chapter.path);
                for Chapter { title, path, .. } in &chapter.below {
                    let _ = writeln!(summary, "  - [{title}]({path})");
                }
            }
        }
        summary
    }
}

/// The rows of the table below [`INDEX`]: a task and its pages.
fn parts(text: &str) -> Vec<Part> {
    let section = text.split_once(&format!("\n## {INDEX}\n"));
    let section = section.and_then(|(_, rest)| rest.split("\n## ").next());
    let rows = section
        .into_iter()
        .flat_map(str::lines)
        .skip_while(|line| !line.starts_with("|---"));
    let cells = rows
        .skip(1)
        .filter_map(|row| row.strip_prefix("| ")?.split_once(" | "));
    let parts = cells.map(|(task, pages)| {
        let mut chapters = chapters(pages, START);
        for chapter in &mut chapters {
            chapter.title = capitalized(&chapter.title);
        }
        Part {
            title: capitalized(task.trim()),
            chapters,
        }
    });
    parts.collect()
}

/// The pages to which a text on a page links, each once.
fn chapters(text: &str, page: &str) -> Vec<Chapter> {
    let mut chapters: Vec<Chapter> = Vec::new();
    let mut title: Option<String> = None;
    let mut path = None;
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::Link { dest_url, .. }) => {
                path = links::target(page, &dest_url).filter(|path| is_page(path));
                title = Some(String::new());
            }
            Event::Text(part) | Event::Code(part) => {
                if let Some(title) = &mut title {
                    title.push_str(&part);
                }
            }
            Event::End(TagEnd::Link) => {
                let title = title.take().unwrap_or_default();
                let path = path.take();
                let is_known = |path: &String| chapters.iter().any(|known| known.path == *path);
                chapters.extend(path.filter(|path| !is_known(path)).map(|path| Chapter {
                    title,
                    path,
                    below: Vec::new(),
                }));
            }
            _ => {}
        }
    }
    chapters
}

fn is_page(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|end| end == "md")
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars).collect()
}

/// Paths of the pages below a directory of the root.
fn markdown_below(root: &Path, directory: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(directory)).with_context(|| directory.to_owned())? {
        let entry = entry?;
        let path = format!("{directory}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            found.extend(markdown_below(root, &path)?);
        } else if is_page(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Project(tempfile::TempDir);

    impl Project {
        fn new(files: &[(&str, &str)]) -> Self {
            let root = tempfile::tempdir().expect("a directory");
            for (path, text) in files {
                let file = root.path().join(path);
                fs::create_dir_all(file.parent().expect("a directory")).expect("created");
                fs::write(file, text).expect("written");
            }
            Self(root)
        }

        #[track_caller]
        fn assert_refused(&self, expected: &str) {
            let error = Manual::read(self.0.path()).err().expect("refused");
            assert_eq!(error.to_string(), expected);
        }
    }

    const README: &str = "# profiler\n\n[a licence](LICENSE)\n\n## Find your way\n\n| task | pages |\n|---|---|\n\
        | record | [batch jobs](docs/jobs.md) · [tools](docs/tools.md) |\n\
        | read | [Files](docs/files.md) |\n\n## Other\n\n| a | b |\n|---|---|\n| c | d |\n";

    const FILES: [(&str, &str); 6] = [
        ("README.md", README),
        ("LICENSE", ""),
        ("docs/jobs.md", "# Jobs\n\n[files](files.md#tables)\n"),
        ("docs/files.md", "# Files\n\n## Tables\n"),
        (
            "docs/tools.md",
            "# Tools\n\n[`perf stat`](tools/perf.md) [jobs](jobs.md)\n",
        ),
        ("docs/tools/perf.md", "# perf\n\n[up](../tools.md)\n"),
    ];

    #[test]
    fn contents_follow_the_readme() {
        let project = Project::new(&FILES);
        let manual = Manual::read(project.0.path()).expect("complete");
        let expected = "# Contents\n\n[profiler](README.md)\n\n# Record\n\n- [Batch jobs](docs/jobs.md)\n\
                        - [Tools](docs/tools.md)\n  - [perf stat](docs/tools/perf.md)\n\n# Read\n\n\
                        - [Files](docs/files.md)\n";
        assert_eq!(manual.summary(), expected);
        assert_eq!(manual.files().collect::<Vec<_>>(), ["LICENSE"]);
    }

    #[test]
    fn page_that_is_not_listed_is_refused() {
        let project = Project::new(&[&FILES[..], &[("docs/tools/lost.md", "# Lost\n")]].concat());
        project.assert_refused("docs/tools/lost.md: not listed in README.md");
    }

    #[test]
    fn broken_link_is_refused() {
        let other = ("docs/files.md", "# Files\n\n[gone](gone.md)\n");
        let project = Project::new(&[&FILES[..], &[other]].concat());
        project.assert_refused(
            "docs/files.md: gone.md: no such file\n\
             docs/jobs.md: files.md#tables: no such heading",
        );
    }
}
