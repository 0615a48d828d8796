//! The queries of docs/recipes.md run on the datasets that the page names.

use std::collections::BTreeMap;

use e2e::{
    dataset::Dataset,
    runs::{Finished, Profiler},
};

const PAGE: &str = include_str!("../../docs/recipes.md");
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/demo.sh");

/// A query of the page.
struct Recipe {
    sql: String,
    /// The option with which its dataset is recorded.
    option: Option<String>,
    /// Whether the page shows rows of this dataset.
    has_rows: bool,
}

fn recipes() -> Vec<Recipe> {
    let mut recipes = Vec::new();
    for section in PAGE.split("\n## ").skip(1) {
        let option = section
            .split_once("With `--source ")
            .and_then(|(_, rest)| Some(rest.split_once('`')?.0.to_owned()));
        let mut rest = section;
        while let Some((_, query)) = rest.split_once("```sql\n") {
            let (sql, after) = query.split_once("```").expect("its end");
            rest = after;
            recipes.push(Recipe {
                sql: sql.to_owned(),
                option: option.clone(),
                has_rows: after.trim_start().starts_with("```text")
                    && !section.contains("The figures are from another run"),
            });
        }
    }
    recipes
}

#[test]
fn every_recipe_runs_on_its_dataset() {
    assert!(PAGE.contains("profiler run -i 100ms -- sh docs/demo.sh"));
    let recipes = recipes();
    assert!(recipes.len() >= 24, "{} recipes", recipes.len());
    let mut runs: BTreeMap<Option<String>, Finished> = BTreeMap::new();
    for recipe in &recipes {
        let run = runs.entry(recipe.option.clone()).or_insert_with(|| {
            let option = recipe.option.iter().flat_map(|list| ["--source", list]);
            Profiler::new()
                .args(["-i", "100ms"])
                .args(option)
                .command(&["sh", DEMO])
                .finish()
        });
        assert_eq!(run.code(), 0, "{}", run.stderr);
        let rows = rows(&run.any_dataset(), &recipe.sql);
        assert!(!recipe.has_rows || rows != 0, "no rows:\n{}", recipe.sql);
    }
}

fn rows(data: &Dataset, sql: &str) -> u64 {
    let query = sql.trim().trim_end_matches(';');
    data.value(&format!("SELECT count(*) FROM ({query})"))
}
