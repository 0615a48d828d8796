//! `profiler export mlflow` and a real server, which MLflow's client and a browser read.

use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use e2e::{
    dataset::{Dataset, script},
    setting,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Metrics of perf.py.
const OF_NODES: [&str; 18] = [
    "max_t_cpu_pct_per_cpu_avg",
    "max_t_cpu_pct_per_cpu_max",
    "max_t_cpu_pct_per_cpu_min",
    "cpu_avg_utilization_pct",
    "cpu_avg_utilization_at100_pct",
    "cpu_avg_utilization_over80_pct",
    "cpu_avg_utilization_over40_pct",
    "cpu_avg_utilization_over20_pct",
    "node_cpu_hours",
    "node_unused_cpu_hours",
    "max_t_mem_percent",
    "max_t_disk_usage_percent",
    "total_disk_io_read_mb",
    "total_disk_io_write_mb",
    "total_net_io_lo_sent_mb",
    "total_net_io_ext_sent_mb",
    "total_net_io_lo_recv_mb",
    "total_net_io_ext_recv_mb",
];

/// A tracking server with its files in a directory.
struct Server {
    process: Child,
    uri: String,
    directory: TempDir,
}

impl Server {
    fn start() -> Self {
        let directory = TempDir::new().expect("a directory");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let path = directory.path();
        let log = fs::File::create(path.join("log")).expect("a log");
        let process = Command::new(setting("PROFILER_TEST_MLFLOW"))
            .args([
                "-m",
                "mlflow",
                "server",
                "--workers",
                "1",
                "--host",
                "127.0.0.1",
            ])
            .args(["--port", &port.to_string(), "--backend-store-uri"])
            .arg(format!("sqlite:///{}", path.join("mlflow.db").display()))
            .arg("--artifacts-destination")
            .arg(path.join("artifacts"))
            .current_dir(path)
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            // Its workers end with it.
            .process_group(0)
            .spawn()
            .expect("python starts");
        let server = Self {
            process,
            uri: format!("http://127.0.0.1:{port}"),
            directory,
        };
        let deadline = Instant::now() + Duration::from_secs(180);
        while !is_healthy(port) {
            let log = fs::read_to_string(server.directory.path().join("log"));
            assert!(Instant::now() < deadline, "{}", log.unwrap_or_default());
            thread::sleep(Duration::from_millis(200));
        }
        server
    }

    /// What MLflow's client finds of a run.
    fn run(&self, id: &str) -> Value {
        script("PROFILER_TEST_MLFLOW", "mlflow_run.py", &[&self.uri, id])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.process.wait();
    }
}

fn is_healthy(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
        return false;
    };
    let request = "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n";
    let mut reply = String::new();
    let answered = stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.read_to_string(&mut reply));
    answered.is_ok() && reply.contains(" 200 ")
}

/// Exit code and stderr of `profiler export mlflow`.
fn export(run: &Path, options: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(["export", "mlflow"])
        .arg(run)
        .args(options)
        .envs(variables.iter().copied())
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("an exit code"), stderr)
}

/// A run of two nodes, of a command with a secret.
fn record(directory: &Path) -> Dataset {
    for host in ["node1", "node2"] {
        let status = Command::new(setting("PROFILER_BIN"))
            .args([
                "run",
                "-q",
                "-i",
                "100ms",
                "--run-id",
                "both",
                "--hostname",
                host,
            ])
            .args(["--label", "team=climate", "--out"])
            .arg(directory)
            .args([
                "--",
                "sh",
                "-c",
                "head -c 100M /dev/zero | sha256sum; sleep 0.3",
                "hunter2",
            ])
            .status();
        assert!(status.expect("it starts").success());
    }
    Dataset::new(directory.join("both"))
}

/// Each node is a step of the metrics of perf.py, with the values of the summary.
fn assert_nodes(metrics: &Value, data: &Dataset) {
    let summary = Command::new(setting("PROFILER_BIN"))
        .args(["summary", "--json"])
        .arg(data.path())
        .output();
    let summary: Value = serde_json::from_slice(&summary.expect("it starts").stdout).expect("JSON");
    for name in OF_NODES {
        let steps = metrics[name]
            .as_array()
            .unwrap_or_else(|| panic!("{name}: {metrics}"));
        assert_eq!(steps.len(), 2, "{name}");
        for (step, node) in steps.iter().zip([0, 1]) {
            assert_eq!(step[0], node, "{name}");
            let node = &summary["runs"][0]["nodes"][node];
            let expected = node["compat"]["perfpy"].get(name).unwrap_or(&node[name]);
            let expected = expected.as_f64();
            assert_eq!(step[2].as_f64(), expected, "{name}");
        }
    }
}

/// Each sample is a step of the system metrics, with the values of the tables.
fn assert_samples(metrics: &Value, data: &Dataset) {
    let history = |name: &str| metrics[name].as_array().expect("a history");
    for (key, sql) in [
        (
            "cpu_utilization_percentage",
            "100 * (1 - (idle_ns + iowait_ns) / (user_ns + nice_ns + system_ns + idle_ns + iowait_ns \
             + irq_ns + softirq_ns + steal_ns + guest_ns + guest_nice_ns))",
        ),
        ("system_memory_usage_megabytes", "memory_used / 1e6"),
        (
            "system_memory_usage_percentage",
            "100 * memory_used / memory_total",
        ),
    ] {
        let rows: Vec<(i64, f64)> = data.rows(&format!(
            "SELECT epoch_us(ts) // 1000, ({sql})::DOUBLE FROM system WHERE host = 'node2' ORDER BY ts"
        ));
        let steps = history(&format!("system/node2/{key}"));
        assert_eq!(steps.len(), rows.len(), "{key}");
        for (number, (step, (ts, value))) in steps.iter().zip(rows).enumerate() {
            assert_eq!((&step[0], &step[1]), (&json!(number), &json!(ts)), "{key}");
            let found = step[2].as_f64().expect("a number");
            assert!((found - value).abs() < 1e-6, "{key}: {found} {value}");
        }
    }
    let sent: f64 = data
        .value("SELECT sum(tx_bytes) / 1e6 FROM netdev WHERE kind <> 'virtual' AND host = 'node1'");
    let steps = history("system/node1/network_transmit_megabytes");
    let last = steps.last().and_then(|step| step[2].as_f64());
    assert!(
        (last.expect("a number") - sent).abs() < 1e-6,
        "{last:?} {sent}"
    );
}

/// The files are there, and none has the command line.
fn assert_artifacts(artifacts: &Value, data: &Dataset) {
    let artifacts = artifacts.as_object().expect("files");
    let names: Vec<_> = artifacts.keys().map(String::as_str).collect();
    let expected = ["nodes.json", "perf.json", "report.html", "summary.json"];
    assert_eq!(names, expected);
    for (name, text) in artifacts {
        assert!(
            !text.as_str().expect("a text").contains("hunter2"),
            "{name}"
        );
    }
    let reports = artifacts["perf.json"].as_str().expect("a text");
    let reports: Value = serde_json::from_str(reports).expect("JSON");
    let samples: usize = data.value("SELECT count(*) FROM timeline WHERE host = 'node2'");
    assert_eq!(reports["1"].as_array().map(Vec::len), Some(samples));
}

/// A browser shows the system metrics and the report.
fn assert_pages(server: &Server, id: &str) {
    let images = env::var("PROFILER_TEST_IMAGES");
    let mut arguments = vec![server.uri.as_str(), id];
    arguments.extend(images.as_deref());
    let pages = script("PROFILER_TEST_BROWSER", "mlflow_pages.py", &arguments);
    let system = pages["system"].as_str().expect("a text");
    for text in [
        "system/node1",
        "system/node2",
        "system_memory_usage_percentage",
    ] {
        assert!(system.contains(text), "{system}");
    }
    let verdict = pages["verdict"].as_str().expect("a text");
    assert!(verdict.starts_with("Bottleneck"), "{verdict}");
}

#[test]
fn mlflow_shows_nodes_system_metrics_and_the_report() {
    let server = Server::start();
    let directory = TempDir::new().expect("a directory");
    let data = record(directory.path());
    let (code, stderr) = export(data.path(), &["-o", &server.uri], &[]);
    assert_eq!(code, 0, "{stderr}");
    let id = stderr.trim_end().rsplit(' ').next().expect("an id");
    let found = server.run(id);
    assert_eq!(
        [&found["name"], &found["status"], &found["experiment"]],
        ["both", "FINISHED", "Default"]
    );
    assert_eq!(
        [&found["tags"]["team"], &found["params"]["hosts"]],
        ["climate", "2"]
    );
    assert_nodes(&found["metrics"], &data);
    assert_samples(&found["metrics"], &data);
    assert_artifacts(&found["artifacts"], &data);
    assert_pages(&server, id);

    // A run of the training script goes on.
    let own = script(
        "PROFILER_TEST_MLFLOW",
        "mlflow_run.py",
        &[&server.uri, "new"],
    );
    let own = own.as_str().expect("an id");
    let variables = [
        ("MLFLOW_TRACKING_URI", server.uri.as_str()),
        ("MLFLOW_RUN_ID", own),
    ];
    let options = ["--prefix", "perf/", "--no-artifacts"];
    let (code, stderr) = export(data.path(), &options, &variables);
    assert_eq!(code, 0, "{stderr}");
    let found = server.run(own);
    assert_eq!(
        (&found["status"], &found["artifacts"]),
        (&json!("RUNNING"), &json!({}))
    );
    let steps = found["metrics"]["perf/node_cpu_hours"].as_array();
    assert_eq!(steps.map(Vec::len), Some(2));

    // What is refused leaves no run.
    let artifacts = server.directory.path().join("artifacts");
    fs::remove_dir_all(&artifacts).expect("removed");
    fs::write(&artifacts, "a file").expect("written");
    let replace = ["-o", &server.uri, "--force"];
    let (code, stderr) = export(data.path(), &replace, &[]);
    assert_eq!((code, stderr.lines().count()), (5, 1), "{stderr}");
    assert!(stderr.contains("the server refuses"), "{stderr}");
    fs::remove_file(&artifacts).expect("removed");
    assert_eq!(server.run(own)["runs"], found["runs"]);
    let options = ["-o", server.uri.as_str(), "--mlflow-run", "0123"];
    let (code, stderr) = export(data.path(), &options, &[]);
    assert_eq!((code, stderr.lines().count()), (3, 1), "{stderr}");
}

/// `docs/switching/perfpy.py`, without privileges, as two nodes.
#[test]
fn training_script_of_perfpy_runs() {
    let server = Server::start();
    let directory = TempDir::new().expect("a directory");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new("setpriv")
        .args(["--bounding-set=-all", "--inh-caps=-all"])
        .arg(setting("PROFILER_TEST_MLFLOW"))
        .arg(root.join("docs/switching/perfpy.py"))
        .args(["node1", "node2"])
        .env("MLFLOW_TRACKING_URI", &server.uri)
        .env("PROFILER", setting("PROFILER_BIN"))
        .env("PYTHONPATH", root.join("python/src"))
        .current_dir(directory.path())
        .output()
        .expect("python starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let lines = stdout.lines().find(|line| line.len() == 32);
    let id = lines.unwrap_or_else(|| panic!("{stdout}"));
    let found = server.run(id);
    assert_eq!(found["status"], "FINISHED");
    let data = Dataset::new(directory.path().join("profiles").join(id));
    let hosts: u64 = data.value("SELECT count(DISTINCT host) FROM timeline");
    assert_eq!(hosts, 2);
    assert_nodes(&found["metrics"], &data);
    assert_samples(&found["metrics"], &data);
    assert_eq!(found["metrics"]["loss"].as_array().map(Vec::len), Some(2));
    assert!(!found["artifacts"]["report.html"].is_null());
}

/// Forwards so many requests to a server, each of which has a connection of its own, and closes all
/// others. Returns its address.
fn forward(server: &Server, requests: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let target = server.uri.strip_prefix("http://").expect("http").to_owned();
    thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let Ok(client) = client else { return };
            if number >= requests {
                continue;
            }
            let server = TcpStream::connect(&target).expect("the server listens");
            let [mut from, mut to] =
                [&client, &server].map(|end| end.try_clone().expect("a socket"));
            let sending = thread::spawn(move || io::copy(&mut from, &mut to));
            let _ = io::copy(&mut &server, &mut &client);
            let _ = client.shutdown(Shutdown::Both);
            let _ = sending.join();
        }
    });
    format!("http://{address}")
}

/// The server dies when the parameters are logged, and before the run can be deleted.
#[test]
fn interrupted_export_is_completed_by_the_next() {
    let server = Server::start();
    let directory = TempDir::new().expect("a directory");
    let data = record(directory.path());
    // Experiment, search, run, four artifacts, parameters, tags, a batch of metrics.
    let broken = forward(&server, 10);
    let (code, stderr) = export(data.path(), &["-o", &broken], &[]);
    assert_eq!((code, stderr.lines().count()), (5, 1), "{stderr}");
    let id = stderr.split("run ").nth(1).expect("a run");
    let id = id.split(' ').next().expect("an id");
    assert!(
        stderr.contains(&format!("run {id} remains, incomplete")),
        "{stderr}"
    );
    let (code, stderr) = export(data.path(), &["-o", &server.uri], &[]);
    assert_eq!(
        (code, stderr.ends_with(&format!(": run {id}\n"))),
        (0, true),
        "{stderr}"
    );
    let found = server.run(id);
    assert_eq!(
        (&found["status"], &found["runs"]),
        (&json!("FINISHED"), &json!(1))
    );
    assert_nodes(&found["metrics"], &data);
    assert_samples(&found["metrics"], &data);
    assert_artifacts(&found["artifacts"], &data);

    // A complete one is replaced on request only.
    let (code, stderr) = export(data.path(), &["-o", &server.uri], &[]);
    assert_eq!((code, stderr.lines().count()), (5, 1), "{stderr}");
    assert!(
        stderr.contains(&format!("run {id} exists; --force")),
        "{stderr}"
    );
    let (code, stderr) = export(data.path(), &["-o", &server.uri, "--force"], &[]);
    assert_eq!(code, 0, "{stderr}");
    let other = stderr.trim_end().rsplit(' ').next().expect("an id");
    assert_ne!(other, id);
    assert_eq!(server.run(other)["runs"], 1);
}

#[test]
fn unreachable_server_is_one_line() {
    let directory = TempDir::new().expect("a directory");
    let data = record(directory.path());
    let (code, stderr) = export(data.path(), &["-o", "http://127.0.0.1:1"], &[]);
    assert_eq!(code, 5);
    assert!(
        stderr.contains("Connection refused") && stderr.lines().count() == 1,
        "{stderr}"
    );
    let options = ["-o", "http://127.0.0.1:1", "--from", "1s"];
    let (code, stderr) = export(data.path(), &options, &[]);
    assert_eq!((code, stderr.contains("whole runs")), (2, true), "{stderr}");
    let (code, stderr) = export(data.path(), &[], &[("MLFLOW_TRACKING_URI", "")]);
    assert_eq!(code, 2);
    assert!(stderr.contains("MLFLOW_TRACKING_URI"), "{stderr}");
}
