//! Links between pages.

use std::{
    collections::{BTreeMap, HashSet},
    path::{Component, Path, PathBuf},
    sync::LazyLock,
};

use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use regex::Regex;

/// What a page links to, and what of it can be linked to.
#[derive(Default)]
pub struct Page {
    pub links: Vec<String>,
    anchors: HashSet<String>,
}

impl Page {
    /// A page in Markdown. Headings have the anchors that GitHub and mdBook give them.
    pub fn of_markdown(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        for event in Parser::new(text) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.add_anchor(&anchor(&heading.take().unwrap_or_default()));
                }
                Event::Text(part) | Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                _ => {}
            }
        }
        page
    }

    fn add_anchor(&mut self, anchor: &str) {
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = [anchor.to_owned()].into_iter().chain(numbered);
        let free = free.into_iter().find(|it| !self.anchors.contains(it));
        self.anchors.extend(free);
    }

    /// A page in HTML, as mdBook writes it.
    pub fn of_html(text: &str) -> Self {
        static ATTRIBUTE: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r#"<[^<>]* (href|src|id)="([^"]*)""#).expect("valid"));
        let mut page = Self::default();
        for tag in text.split_inclusive('>') {
            for found in ATTRIBUTE.captures_iter(tag) {
                if &found[1] == "id" {
                    page.anchors.insert(found[2].to_owned());
                } else {
                    page.links.push(found[2].replace("&amp;", "&"));
                }
            }
        }
        page
    }
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ => c.is_alphanumeric().then_some(c),
    });
    kept.collect::<String>().to_lowercase()
}

/// The file below the root that a link of a page names: the page itself for an anchor alone, none for
/// a link to another host.
pub fn target(page: &str, link: &str) -> Option<String> {
    let file = link.split('#').next().unwrap_or_default();
    if file.contains(':') {
        return None;
    }
    if file.is_empty() {
        return Some(page.to_owned());
    }
    let mut path = PathBuf::new();
    let directory = Path::new(page).parent().unwrap_or(Path::new(""));
    for component in directory.join(file).components() {
        match component {
            // Outside of the root, a name that does not exist.
            Component::ParentDir if !path.pop() => path.push(".."),
            Component::ParentDir | Component::CurDir => {}
            other => path.push(other),
        }
    }
    Some(path.to_string_lossy().into_owned())
}

/// Links to files and headings that do not exist, as `PAGE: LINK: CAUSE`. Pages are named by their
/// paths below the root. Links to other hosts are not checked.
pub fn broken(root: &Path, pages: &BTreeMap<String, Page>) -> Vec<String> {
    let mut found = Vec::new();
    for (path, page) in pages {
        for link in &page.links {
            if let Some(cause) = cause(root, pages, path, link) {
                found.push(format!("{path}: {link}: {cause}"));
            }
        }
    }
    found
}

fn cause(
    root: &Path,
    pages: &BTreeMap<String, Page>,
    path: &str,
    link: &str,
) -> Option<&'static str> {
    let target = target(path, link)?;
    let file = root.join(&target);
    if file.is_dir() {
        return Some("a directory, which a site cannot show");
    }
    if !file.exists() {
        return Some("no such file");
    }
    let (_, anchor) = link.split_once('#')?;
    let page = pages.get(&target)?;
    let is_missing = !anchor.is_empty() && !page.anchors.contains(anchor);
    is_missing.then_some("no such heading")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn headings_have_the_anchors_of_github() {
        let text = "# A `--page` of: things\n\n## Same\n\n## Same\n\n```sh\n# no heading\n```\n";
        let page = Page::of_markdown(text);
        let mut anchors: Vec<_> = page.anchors.iter().map(String::as_str).collect();
        anchors.sort_unstable();
        assert_eq!(anchors, ["a---page-of-things", "same", "same-1"]);
    }

    #[test]
    fn attributes_of_html_are_read() {
        let page = Page::of_html(
            r##"<h1 id="top"><a class="x" href="#top">text id="no"</a></h1><img alt="" src="a.png">"##,
        );
        assert_eq!(page.links, ["#top", "a.png"]);
        assert_eq!(page.anchors, HashSet::from(["top".to_owned()]));
    }

    #[test]
    fn broken_links_are_found() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().expect("a directory")).expect("created");
            fs::write(file, text).expect("written");
            (path.to_owned(), Page::of_markdown(text))
        };
        let first = "# First\n[a](docs/b.md#second) [b](docs/c.md) [c](docs) [d](https://x.org/y)\n\
                     [e](#first) [f](#none) ![g](docs/b.md) `[h](code.md)`\n";
        let second = "# Second\n[a](../a.md#first) [b](../../a.md) [c](../a.md#second)\n";
        let pages = BTreeMap::from([write("a.md", first), write("docs/b.md", second)]);
        let expected = [
            "a.md: docs/c.md: no such file",
            "a.md: docs: a directory, which a site cannot show",
            "a.md: #none: no such heading",
            "docs/b.md: ../../a.md: no such file",
            "docs/b.md: ../a.md#second: no such heading",
        ];
        assert_eq!(broken(root.path(), &pages), expected);
    }
}
