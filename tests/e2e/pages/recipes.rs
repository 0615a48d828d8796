//! The queries of docs/recipes.md run on the datasets that the page names.

use e2e::page::{Datasets, queries};

use super::scripts::check_python;

const PAGE: &str = include_str!("../../../docs/recipes.md");

#[test]
fn every_recipe_runs_on_its_dataset() {
    let recipes = queries(PAGE);
    assert!(recipes.len() >= 24, "{} recipes", recipes.len());
    let mut datasets = Datasets::default();
    for recipe in &recipes {
        let (rows, _) = recipe.counts(&datasets.of(&recipe.command));
        assert!(!recipe.shows_rows || rows != 0, "no rows:\n{}", recipe.sql);
    }
}

#[test]
fn python_runs() {
    check_python("docs/recipes.md");
}
