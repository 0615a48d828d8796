"""Queries over the runs of a site: accounting, inefficient jobs, slow nodes, interference, anomalies.

The SQL in `sql/` runs unchanged on DuckDB (one machine), on Spark (a cluster) and, for the parts that
read tables, on the workers of a Dask cluster:

    python -m profiler.fleet accounting --dataset /shared/profiles
"""

from ._dataset import Dataset, open_dataset
from ._engines import ENGINES, Engine, connect
from ._queries import QUERIES, Query, run

__all__ = ["ENGINES", "QUERIES", "Dataset", "Engine", "Query", "connect", "open_dataset", "run"]
