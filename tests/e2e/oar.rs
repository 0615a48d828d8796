//! `--job` under a real OAR, in a Debian below `target/` whose creation takes minutes:
//! `cargo xtask test oar`.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use e2e::{
    dataset::Dataset,
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
        Self::with_scripts(&[])
    }

    /// Starts an OAR that runs a prologue and an epilogue.
    fn with_scripts(scripts: &[&str]) -> Self {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = PathBuf::from(e2e::setting("PROFILER_TEST_OAR"));
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh"])
            .arg(tests.join("environments/oar/serve.sh"))
            .arg(&root)
            .args(scripts)
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

    /// A file as the processes of this OAR see it, which have file systems of their own.
    fn file(&self, path: &str) -> PathBuf {
        let inside = procfs::children(self.server.pid());
        let inside = inside.first().expect("a child");
        PathBuf::from(format!("/proc/{inside}/root{path}"))
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
    // The account `oar`, which owns the cgroups of jobs, is that of the Debian.
    let passwd = oar.root.join("etc/passwd");
    let mount = format!(
        "mount --bind {} /etc/passwd && exec \"$0\" \"$@\"",
        passwd.display()
    );
    let running = Profiler::wrapped_in(&["unshare", "--mount", "sh", "-c", &mount])
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
    // It has waited for the start of the profiler, which took CPU time too.
    let most: u64 =
        data.value("SELECT lifetime_oncpu_ns FROM process ORDER BY oncpu_ns DESC LIMIT 1");
    let more = most.checked_sub(truth).expect("no less than it says");
    assert!(more < 50_000_000, "{most}, not {truth}");
    wait_until("its cgroup is gone", || {
        !Path::new(&format!("/sys/fs/cgroup/cpuset/oar/tester_{job}")).exists()
    });
}

/// The job of an ordinary user, with a profiler that has file capabilities.
#[test]
fn run_ends_with_the_work_of_the_script() {
    const CAPABILITIES: &str = "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep";
    let oar = Oar::start();
    let program = oar.root.join("usr/local/bin/profiler");
    fs::copy(e2e::setting("PROFILER_BIN"), &program).expect("copied");
    let status = Command::new("setcap")
        .arg(CAPABILITIES)
        .arg(&program)
        .status();
    assert!(status.expect("setcap starts").success());
    let [started, work, end] = ["started", "work", "end"].map(|name| oar.home().join(name));
    for path in [&started, &work, &end] {
        let _ = fs::remove_file(path);
    }
    let script = "#!/bin/bash\n\
         echo > started\n\
         profiler run --job -i 500ms -o $(mktemp -d) --source process,usage 2> err &\n\
         bash -c 'sleep 5; exit 6'\n\
         date +%s.%N > work\n\
         wait $!; echo $? > code\n\
         date +%s.%N > end\n";
    let path = oar.home().join("script");
    fs::write(&path, script).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&path, mode).expect("our file");
    let job = oar.submit("~/script");
    let messages = || fs::read_to_string(oar.home().join("err")).unwrap_or_default();
    wait_until("the job starts", || started.exists());
    wait_until("the work ends", || work.exists());
    wait_until("the job ends", || end.exists());
    wait_until("its cgroup is gone", || {
        !Path::new(&format!("/sys/fs/cgroup/cpuset/oar/tester_{job}")).exists()
    });
    let seconds = |path| {
        let text = fs::read_to_string(path).expect("written");
        text.trim().parse::<f64>().expect("seconds")
    };
    let after = seconds(end) - seconds(work);
    let limit = 5.0 * f64::from(e2e::timeout_factor());
    assert!((0.0..limit).contains(&after), "{after}: {}", messages());
    let code = fs::read_to_string(oar.home().join("code")).expect("written");
    assert_eq!(code, "0\n", "{}", messages());
    let reason = format!("job {job} waits only for the profiler: the run ends");
    assert!(messages().contains(&reason), "{}", messages());
}

/// The scripts of docs/deploy, which OAR runs as its own user.
#[test]
fn prologue_profiles_a_job_and_epilogue_cleans_up() {
    const SCRIPTS: [&str; 2] = ["prologue", "epilogue"];
    let root = PathBuf::from(e2e::setting("PROFILER_TEST_OAR"));
    let mode: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/deploy");
    let installed = SCRIPTS.map(|name| format!("/etc/oar/profiler-{name}.sh"));
    for (name, path) in SCRIPTS.iter().zip(&installed) {
        let path = root.join(path.trim_start_matches('/'));
        fs::copy(deploy.join(format!("oar-{name}.sh")), &path).expect("copied");
        fs::set_permissions(&path, mode.clone()).expect("our file");
    }
    let program = root.join("usr/local/bin/profiler");
    fs::copy(e2e::setting("PROFILER_BIN"), &program).expect("copied");
    let out = root.join("var/lib/profiler");
    // Each OAR numbers its jobs from 1.
    let _ = fs::remove_dir_all(&out);
    let oar = Oar::with_scripts(&installed.each_ref().map(String::as_str));
    let go = oar.home().join("go");
    let _ = fs::remove_file(&go);
    let job = oar.submit("until [ -e go ]; do sleep 0.1; done; bash -c \"exit 6\"");
    let pid_file = oar.file(&format!("/run/profiler-jobs/{job}.pid"));
    wait_until("the prologue has run", || pid_file.exists());
    let run = out.join(format!("oar-{job}"));
    wait_until("the first sample", || run.join("sched").exists());
    // OAR kills all processes of the job's cpuset, before the epilogue if the job is deleted.
    let option = format!("--job\0{job}\0");
    let processes = fs::read_dir("/proc").expect("procfs").flatten();
    let mut processes = processes.map(|entry| entry.path());
    let profiler = processes.find(|process| {
        let words = fs::read(process.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(&option)
    });
    let profiler = profiler.expect("it runs");
    let groups = fs::read_to_string(profiler.join("cgroup")).expect("it runs");
    assert!(!groups.contains("/oar/"), "{groups}");
    fs::write(&go, "").expect("written");
    wait_until("the epilogue has run", || !pid_file.exists());
    let left = fs::read_dir(oar.file("/run/profiler-jobs")).expect("a directory");
    assert_eq!(left.count(), 0, "no log is left");
    let state = procfs::state(&profiler);
    assert!(matches!(state, None | Some('Z')), "not ended: {state:?}");
    let data = Dataset::new(run);
    data.assert_complete();
    let jobs: Vec<(String, u64)> = data.rows(
        "SELECT job_id, count(*) FILTER (exit_code = 6 AND cmdline = 'bash -c exit 6') FROM process GROUP BY ALL",
    );
    assert_eq!(jobs, [(job, 1)]);
}
