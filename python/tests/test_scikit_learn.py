"""scikit-learn, which calls joblib itself."""

from __future__ import annotations

from conftest import Run, losses, rows

SEARCH = """
import joblib, profiler, profiler.joblib
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score

if __name__ == "__main__":
    x, y = make_classification(200, random_state=0)
    with joblib.parallel_config(backend="profiler", n_jobs=2):
        with profiler.region("search"):
            search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0, 10.0]}, cv=4).fit(x, y)
        with profiler.region("scores"):
            cross_val_score(LogisticRegression(), x, y, cv=5)
        with profiler.region("forest"):
            # Prediction requires threads.
            forest = RandomForestClassifier(12, random_state=0).fit(x, y)
            forest.predict(x)
    profiler.event("found", best=search.best_params_["C"], trees=len(forest.estimators_))
"""


def test_calls_are_regions(run: Run) -> None:
    reader = run(SEARCH)
    regions = {row["name"]: row["region_id"] for row in rows(reader) if row["kind"] is None}
    calls = rows(reader, kind="joblib")
    count = {
        name: sum(row["parent_region_id"] == region for row in calls) for name, region in regions.items()
    }
    assert count == {"search": 3 * 4, "scores": 5, "forest": 12, "found": 0}
    main = rows(reader, name="search")[0]["pid"]
    assert {row["status"] for row in calls} == {"finished"} and main not in {row["pid"] for row in calls}
    assert {row["name"] for row in calls} == {"_fit_and_score", "_parallel_build_trees"}
    assert not losses(reader)
