"""What MLflow's client finds of a run: mlflow_run.py URI ID, or `URI new` for a new run that goes on."""

import json
import sys

import mlflow

uri, run_id = sys.argv[1:]
client = mlflow.MlflowClient(uri)
if run_id == "new":
    print(json.dumps(client.create_run("0").info.run_id))
    sys.exit()
run = client.get_run(run_id)
history = {
    name: [[metric.step, metric.timestamp, metric.value] for metric in client.get_metric_history(run_id, name)]
    for name in run.data.metrics
}
mlflow.set_tracking_uri(uri)
artifacts = {
    file.path: mlflow.artifacts.load_text(f"runs:/{run_id}/{file.path}") for file in client.list_artifacts(run_id)
}
experiment = client.get_experiment(run.info.experiment_id)
json.dump(
    {
        "name": run.info.run_name,
        "experiment": experiment.name,
        "status": run.info.status,
        "span": [run.info.start_time, run.info.end_time],
        "metrics": history,
        "params": run.data.params,
        "tags": run.data.tags,
        "artifacts": artifacts,
        "runs": len(client.search_runs([experiment.experiment_id])),
    },
    sys.stdout,
)
