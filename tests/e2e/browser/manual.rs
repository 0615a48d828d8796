//! The site that `cargo xtask docs --site` builds.

use e2e::{dataset::script, setting};

use super::facts::Site;

#[test]
fn search_finds_a_page() {
    let index = setting("PROFILER_TEST_SITE");
    let arguments = ["site", &index, "Holm correction"];
    let facts = script("PROFILER_TEST_BROWSER", "browser.py", &arguments);
    let site: Site = serde_json::from_value(facts).expect("facts");
    for title in ["Batch jobs", "Python", "Your first report", "perf stat"] {
        assert!(site.contents.iter().any(|it| it == title), "{site:?}");
    }
    assert!(site.found[0].starts_with("Comparisons"), "{site:?}");
    assert_eq!(site.heading, "Comparisons");
    assert_eq!((&site.console, &site.errors), (&vec![], &vec![]));
    let root = index.trim_end_matches("index.html");
    for request in &site.requests {
        let file = request.strip_prefix("file://").expect("a file");
        assert!(file.starts_with(root), "{request}");
    }
}
