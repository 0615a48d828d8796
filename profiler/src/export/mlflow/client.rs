//! Requests to a tracking server.

use std::{
    fs::File,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use ureq::{
    Agent, Body,
    http::{Response, Uri},
};

use crate::{
    failure::{Failure, Reason},
    support::http,
};

/// Limits of a request for metrics, parameters and tags.
const METRICS: usize = 1000;
const OTHERS: usize = 100;
/// What is read of a reply, bytes.
const MAX_REPLY: u64 = 4 << 20;

/// Tag of runs that an export has created: the name of the run of the profiler. Runs that were there
/// before, such as that of a training script, do not have it.
const CREATED_FOR: &str = "profiler.created_for";

/// A tracking server.
pub struct Client {
    agent: Agent,
    /// Without a slash at the end, and without credentials.
    server: String,
    authorization: Option<String>,
}

/// A run on the server.
pub struct Run {
    pub id: String,
    /// Where its artifacts are.
    pub artifacts: String,
}

impl Client {
    /// A client with the credentials of the URI or of `environment`, which gives the values of MLflow's
    /// variables.
    ///
    /// # Errors
    ///
    /// When the URI is not one of a server.
    pub fn new(uri: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let parsed: Option<Uri> = uri.trim_end_matches('/').parse().ok();
        let parts = parsed.as_ref().and_then(|uri| {
            let scheme = uri.scheme_str().filter(|s| ["http", "https"].contains(s))?;
            Some((scheme, uri.authority()?, uri.path()))
        });
        let Some((scheme, authority, path)) = parts else {
            let message = "the URI of an MLflow server begins with http:// or https://";
            return Err(Failure::new(Reason::Usage, message));
        };
        let (user, host) = match authority.as_str().rsplit_once('@') {
            Some((user, host)) => (Some(user.to_owned()), host),
            None => (None, authority.as_str()),
        };
        let user = user.or_else(|| {
            let name = environment("MLFLOW_TRACKING_USERNAME")?;
            let password = environment("MLFLOW_TRACKING_PASSWORD").unwrap_or_default();
            Some(format!("{name}:{password}"))
        });
        let basic = user.map(|user| format!("Basic {}", BASE64_STANDARD.encode(user)));
        let token = environment("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
        let config = http::agent()
            .timeout_global(Some(Duration::from_secs(120)))
            // A server that refuses a file may close the connection after its reply.
            .max_idle_connections(0)
            .build();
        Ok(Self {
            agent: config.into(),
            server: format!("{scheme}://{host}{}", path.trim_end_matches('/')),
            authorization: basic.or(token),
        })
    }

    /// Its URI without credentials.
    pub fn server(&self) -> &str {
        &self.server
    }

    fn failure(&self, why: &str) -> Failure {
        Failure::new(Reason::Output, format!("{}: {why}", self.server))
    }

    fn reply(&self, reply: Result<Response<Body>, ureq::Error>) -> Result<Value, Failure> {
        let mut reply = reply.map_err(|error| self.failure(&error.to_string()))?;
        let status = reply.status();
        let text = reply
            .body_mut()
            .with_config()
            .limit(MAX_REPLY)
            .read_to_string();
        let text = text.map_err(|error| self.failure(&error.to_string()))?;
        let value: Option<Value> = serde_json::from_str(&text).ok();
        if status.is_success() {
            let empty = text.is_empty().then(|| json!({}));
            return value
                .or(empty)
                .ok_or_else(|| self.failure("the reply is not JSON: is this an MLflow server?"));
        }
        let value = value.unwrap_or_default();
        let message = value["message"].as_str().unwrap_or_default();
        let line = http::line(message);
        let why = match value["error_code"].as_str() {
            Some("RESOURCE_DOES_NOT_EXIST") => {
                return Err(Failure::new(
                    Reason::Target,
                    format!("{}: {line}", self.server),
                ));
            }
            _ if line.is_empty() => format!("the server refuses: {status}"),
            _ => format!("the server refuses: {line} ({status})"),
        };
        Err(self.failure(&why))
    }

    fn get(&self, path: &str, query: (&str, &str)) -> Result<Value, Failure> {
        let mut request = self
            .agent
            .get(format!("{}/api/2.0/mlflow/{path}", self.server));
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        self.reply(request.query(query.0, query.1).call())
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let mut request = self
            .agent
            .post(format!("{}/api/2.0/mlflow/{path}", self.server));
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let request = request.header("Content-Type", "application/json");
        self.reply(request.send(body.to_string()))
    }

    /// The identifier of an experiment, which is created if there is none of this name.
    pub fn experiment(&self, name: &str) -> Result<String, Failure> {
        let found = match self.get("experiments/get-by-name", ("experiment_name", name)) {
            Err(failure) if failure.reason == Reason::Target => {
                self.post("experiments/create", &json!({"name": name}))?
            }
            found => found?["experiment"].clone(),
        };
        let id = found["experiment_id"].as_str();
        id.map(str::to_owned)
            .ok_or_else(|| self.failure("the reply has no experiment"))
    }

    /// A run that exists.
    pub fn run(&self, id: &str) -> Result<Run, Failure> {
        let found = self.get("runs/get", ("run_id", id))?;
        self.run_of(&found)
    }

    /// The last run that was created for a run of the profiler, and whether it has ended.
    pub fn find_run(&self, experiment: &str, name: &str) -> Result<Option<(Run, bool)>, Failure> {
        let quote = if name.contains('\'') { '"' } else { '\'' };
        let body = json!({
            "experiment_ids": [experiment], "max_results": 1,
            "filter": format!("tags.`{CREATED_FOR}` = {quote}{name}{quote}"),
            "order_by": ["attributes.start_time DESC"],
        });
        let found = self.post("runs/search", &body)?;
        let run = &found["runs"][0];
        if run.is_null() {
            return Ok(None);
        }
        let has_ended = run["info"]["status"] != "RUNNING";
        Ok(Some((self.run_of(&json!({"run": run}))?, has_ended)))
    }

    /// A new run for a run of the profiler, which began at this time, ms since 1970-01-01 UTC.
    pub fn create_run(&self, experiment: &str, name: &str, start: i64) -> Result<Run, Failure> {
        let body = json!({
            "experiment_id": experiment, "run_name": name, "start_time": start,
            "tags": [{"key": CREATED_FOR, "value": name}],
        });
        let created = self.post("runs/create", &body)?;
        self.run_of(&created)
    }

    fn run_of(&self, reply: &Value) -> Result<Run, Failure> {
        let info = &reply["run"]["info"];
        match (info["run_id"].as_str(), info["artifact_uri"].as_str()) {
            (Some(id), Some(artifacts)) => Ok(Run {
                id: id.to_owned(),
                artifacts: artifacts.to_owned(),
            }),
            _ => Err(self.failure("the reply has no run")),
        }
    }

    /// Ends a run; `status` is a word of MLflow.
    pub fn end_run(&self, run: &Run, status: &str, end: Option<i64>) -> Result<(), Failure> {
        let now = || {
            let since = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        };
        let body = json!({
            "run_id": run.id, "status": status, "end_time": end.unwrap_or_else(now),
        });
        self.post("runs/update", &body).map(drop)
    }

    /// Deletes a run.
    pub fn delete_run(&self, run: &Run) -> Result<(), Failure> {
        self.post("runs/delete", &json!({"run_id": run.id}))
            .map(drop)
    }

    /// Adds parameters and tags, as pairs.
    pub fn describe(
        &self,
        run: &Run,
        params: &[(String, String)],
        tags: &[(String, String)],
    ) -> Result<(), Failure> {
        for (kind, pairs) in [("params", params), ("tags", tags)] {
            for pairs in pairs.chunks(OTHERS) {
                let pairs = pairs.iter();
                let pairs = pairs.map(|(key, value)| json!({"key": key, "value": value}));
                let body = json!({"run_id": run.id, kind: pairs.collect::<Vec<_>>()});
                self.post("runs/log-batch", &body)?;
            }
        }
        Ok(())
    }

    /// Stores a file as an artifact.
    pub fn put(&self, run: &Run, name: &str, file: File) -> Result<(), Failure> {
        let Some(place) = run.artifacts.strip_prefix("mlflow-artifacts:") else {
            let scheme = run.artifacts.split(':').next().unwrap_or_default();
            let why = format!(
                "artifacts of this run go to {scheme}: without the server; add --no-artifacts, or start \
                 the server with --serve-artifacts"
            );
            return Err(self.failure(&why));
        };
        // Perhaps with the name of a server, which is this one.
        let path = match place.strip_prefix("//") {
            Some(rest) => rest.split_once('/').map_or("", |(_, path)| path),
            None => place.trim_start_matches('/'),
        };
        let uri = format!(
            "{}/api/2.0/mlflow-artifacts/artifacts/{path}/{name}",
            self.server
        );
        let mut request = self.agent.put(uri);
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        self.reply(request.send(file)).map(drop)
    }

    /// Metrics of a run, sent in batches.
    pub fn metrics<'a>(&'a self, run: &'a Run) -> Metrics<'a> {
        Metrics {
            client: self,
            run,
            batch: Vec::new(),
        }
    }
}

/// Metrics on their way.
pub struct Metrics<'a> {
    client: &'a Client,
    run: &'a Run,
    batch: Vec<Value>,
}

impl Metrics<'_> {
    /// Adds a value; NaN is left out. `ts` is in µs since 1970-01-01 UTC.
    pub fn add(&mut self, name: &str, value: f64, ts: i64, step: usize) -> Result<(), Failure> {
        if value.is_nan() {
            return Ok(());
        }
        self.batch.push(json!({
            "key": name, "value": value, "timestamp": ts.div_euclid(1000), "step": step,
        }));
        if self.batch.len() == METRICS {
            self.send()?;
        }
        Ok(())
    }

    /// Sends those that have not been sent.
    pub fn send(&mut self) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        let body = json!({"run_id": self.run.id, "metrics": batch});
        self.client.post("runs/log-batch", &body).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_in_no_message() {
        let none = |_: &str| None;
        let client = Client::new("http://me:secret@127.0.0.1:1/base/", none).expect("a server");
        assert_eq!(client.server, "http://127.0.0.1:1/base");
        let authorization = client.authorization.as_deref();
        assert_eq!(authorization, Some("Basic bWU6c2VjcmV0"));
        let refused = client.experiment("x").expect_err("nobody listens");
        assert!(
            refused.message.starts_with("http://127.0.0.1:1/base: "),
            "{refused}"
        );
        assert!(!refused.message.contains("secret"), "{refused}");
        for uri in ["mlruns", "file:///mlruns", "databricks", "http://"] {
            let refused = Client::new(uri, none).err().expect("no server");
            assert_eq!(refused.reason, Reason::Usage, "{uri}");
        }
        let token = |name: &str| (name == "MLFLOW_TRACKING_TOKEN").then(|| "t".to_owned());
        let client = Client::new("https://host", token).expect("a server");
        assert_eq!(client.authorization.as_deref(), Some("Bearer t"));
    }
}
