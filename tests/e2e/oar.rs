//! `--job` under a real OAR, in a Debian below `target/` whose creation takes minutes:
//! `cargo xtask test oar`.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::{
    procfs,
    runs::{ProcessGroup, Profiler, wait_until},
};
use tempfile::TempDir;

/// A single-node OAR, stopped when it is dropped.
struct Oar {
    server: ProcessGroup,
    root: PathBuf,
    /// Directory with the command `oarstat`.
    commands: TempDir,
}

impl Oar {
    fn start() -> Self {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = PathBuf::from(e2e::setting("PROFILER_TEST_OAR"));
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh"])
            .arg(tests.join("environments/oar/serve.sh"))
            .arg(&root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut server = ProcessGroup::start(&mut command);
        let stdout = server.0.stdout.take().expect("a pipe");
        let mut lines = BufReader::new(stdout).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line == "ready"));
        assert!(ready, "see {}/tmp/*.log", root.display());
        // The child is the shell in the new namespaces.
        let inside = procfs::children(server.pid());
        let enter = format!(
            "nsenter --mount --target {}",
            inside.first().expect("a child")
        );
        let commands = TempDir::new().expect("a directory");
        let oarstat = commands.path().join("oarstat");
        let script = format!(
            "#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\nexec {enter} chroot {} oarstat \"$@\"\n",
            root.display()
        );
        fs::write(&oarstat, script).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&oarstat, mode).expect("our file");
        Self {
            server,
            root,
            commands,
        }
    }

    /// Submits a command as a user and returns the job id.
    fn submit(&self, command: &str) -> String {
        let inside = procfs::children(self.server.pid());
        let inside = inside.first().expect("a child").to_string();
        let oarsub = format!("oarsub -l /resource_id=1,walltime=0:2:0 '{command}'");
        let output = Command::new("nsenter")
            .args(["--mount", "--target", &inside, "chroot"])
            .arg(&self.root)
            .args(["su", "-", "tester", "-c", &oarsub])
            .env("LC_ALL", "C")
            .output()
            .expect("nsenter");
        let stdout = String::from_utf8_lossy(&output.stdout);
        let id = stdout
            .lines()
            .find_map(|line| line.strip_prefix("OAR_JOB_ID="));
        let stderr = String::from_utf8_lossy(&output.stderr);
        id.unwrap_or_else(|| panic!("{stdout}{stderr}")).to_owned()
    }

    fn home(&self) -> PathBuf {
        self.root.join("home/tester")
    }
}

#[test]
fn oar_job() {
    let oar = Oar::start();
    for name in ["go", "oncpu"] {
        let _ = fs::remove_file(oar.home().join(name));
    }
    let job = oar.submit(
        "until [ -e go ]; do sleep 0.1; done; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; \
         read oncpu rest < /proc/$$/schedstat; echo $oncpu > oncpu; bash -c \"exit 6\"",
    );
    let path = format!("{}:/usr/bin:/bin", oar.commands.path().display());
    let running = Profiler::new()
        .args(["-i", "200ms", "--scheduler", "oar", "--job", &job])
        .env("PATH", path)
        .start();
    fs::write(oar.home().join("go"), "").expect("written");
    let finished = running.finish();
    // The scheduler has answered.
    assert!(
        !finished.stderr.contains("cannot query"),
        "{}",
        finished.stderr
    );
    let data = finished.dataset();
    data.assert_complete();
    let target = data.manifest()["target"]["job"].clone();
    assert_eq!(target["found_by"], "cgroup", "{target}");
    let ids: Vec<(Option<String>,)> = data.rows("SELECT DISTINCT job_id FROM process");
    assert_eq!(ids, [(Some(job.clone()),)]);
    let last: (Option<String>, Option<u32>) = data.row(
        "SELECT step_id, task_rank FROM process WHERE exit_code = 6 AND cmdline = 'bash -c exit 6'",
    );
    assert_eq!(last, (None, None));
    let oncpu = fs::read_to_string(oar.home().join("oncpu")).expect("the job has written it");
    let truth: u64 = oncpu.trim().parse().expect("a number");
    let most: u64 = data.value("SELECT max(oncpu_ns) FROM process");
    let more = most.checked_sub(truth).expect("no less than it says");
    assert!(more < 50_000_000, "{most}, not {truth}");
    wait_until("its cgroup is gone", || {
        !Path::new(&format!("/sys/fs/cgroup/cpuset/oar/tester_{job}")).exists()
    });
}
