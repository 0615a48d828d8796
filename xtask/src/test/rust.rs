//! Tests run by cargo.
//!
//! All tests are built with one profile and for the whole workspace, so that each dependency is compiled
//! once; the runner then selects tests.

use std::{
    io::{BufRead as _, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result, bail};

use super::{
    Selection,
    failures::Failures,
    leftovers::RunDirectory,
    queries::{self, QueryServer},
};
use crate::{
    apt, bpf, docs, fleet, python, shell,
    vm::{NEED_COUNTERS, NEED_DEVICES, NEED_HOTPLUG, NEED_SYSTEM},
    workspace::Workspace,
};

const END_TO_END: &str = "e2e";

/// Tests that need an NVIDIA GPU.
const NEED_GPU: &str = "nvidia::";
/// Tests that need Slurm and Open MPI.
const NEED_JOBS: &str = "jobs::";
/// Attacks.
const HOSTILE: &str = "hostile::";
/// Tests that need the programs of the tier `readers`.
const NEED_READERS: &str = "engines::";
/// Tests that need a browser.
const NEED_BROWSER: &str = "browser::";
/// Tests that need OAR.
const NEED_OAR: &str = "oar::";
/// Tests that need hours.
const SOAK: &str = "soak::";
/// Tests of the tier `long`: those that take longest, and those of samples at high rates. Names of several
/// tests are prefixes.
const LONG: [&str; 38] = [
    "compact::killed_compactions_keep_every_row",
    "compare::five_percent_are_found_with_ten_runs",
    "compare::p_values_are_those_of_the_permutation_test",
    "crash::every_sample_is_recovered_after_twenty_kills",
    "export::samples_without_cpu_time_are_joined_with_the_next",
    "export_perfmon::documented_values_equal_sql",
    "file_systems::file_systems_on_demand_are_not_kept_mounted",
    "full_disk::full_disk_drops_rows_but_keeps_files_and_target",
    "import::exports_of_flowcept_come_back",
    "import::exports_of_perfmon_come_back",
    "job_search::hanging_scheduler_is_not_waited_for",
    "many_nodes::sixty_four_hosts_share_one_run",
    "many_nodes::split_by_job_writes_one_run_per_job",
    "pages::coming_from::",
    "pages::recipes::every_recipe_runs_on_its_dataset",
    "pages::scripts::ci",
    "perf::hundred_threads_are_read_quickly",
    "process::no_fork_is_lost_while_attaching",
    "psutil::baselines_lie_between_two_psutil_readings",
    "psutil::footprint_is_a_complete_sum",
    "report_input::clocks_that_differ_are_named",
    "resource_limits::ceilings_without_threads_are_refused",
    "roofline::measured_ceilings_are_in_the_report",
    "run_end::signal_while_attaching_leaves_a_complete_run_or_none",
    "run_queue::",
    "samples::",
    "scenarios::",
    "sched::every_sample_of_",
    "sched::five_thousand_naps_are_exact_to_the_nanosecond",
    "service::hundred_clients_at_once_are_served",
    "service::processes_that_start_during_a_reading_have_rows",
    "status::run_does_not_wait_for_a_service_that_hangs",
    "summary::every_figure_is_recomputed",
    "summary::figures_of_gpus_equal_their_sql",
    "timeline::timeline_columns_match_duckdb_over_the_other_tables",
    "unprivileged::all_processes_of_a_command_have_births_and_ends",
    "unprivileged::without_perf_events_the_shortfall_is_counted",
    "xtask::command_runs_as_without_the_profiler",
];
/// Attacks that only run with the whole tier. Others of the same classes run without arguments as well.
const LONG_ATTACKS: [&str; 16] = [
    "foreign_run::files_that_become_gigabytes_are_refused",
    "jobs::job_environment_is_trusted_for_one_user_only",
    "marks::implausible_sender_losses_are_charged_to_the_sender",
    "marks::mark_storm_only_affects_its_senders",
    "marks::marks_fill_the_disk_at_a_limited_rate",
    "marks::open_regions_are_limited_per_user",
    "memory::descriptors_of_a_user_have_a_budget",
    "obstacles::commands_end_whatever_has_the_names_of_the_files",
    "obstacles::runs_are_complete_whatever_has_the_names_of_their_files",
    "process_names::command_lines_take_bounded_memory",
    "process_names::endless_command_line_costs_no_more",
    "service::stopped_client_loses_only_its_own_rows",
    "service_load::samples_of_a_client_have_a_budget",
    "service_load::silent_clients_of_a_user_leave_places_for_others",
    "service_load::slow_requests_take_no_place_and_have_one_deadline",
    "service_load::starts_and_ends_of_profiles_are_charged",
];
/// Other end-to-end tests that are excluded from the tier `e2e`.
const EXCLUDED: [&str; 11] = [
    NEED_BROWSER,
    NEED_COUNTERS,
    NEED_DEVICES,
    NEED_GPU,
    NEED_HOTPLUG,
    NEED_JOBS,
    NEED_OAR,
    NEED_READERS,
    NEED_SYSTEM,
    HOSTILE,
    SOAK,
];

pub fn unit(workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
    bpf::build(workspace)?;
    build(
        workspace,
        &["--all-targets"],
        "building the programs and their tests (some minutes the first time)",
    )?;
    let tests = run(runner(workspace, Tests::Unit, selection)?, None)?;
    if !selection.filter.is_empty() {
        return Ok(tests);
    }
    shell::run(
        workspace
            .cargo()
            .args(["test", "--quiet", "--workspace", "--doc"])
            .args(["--exclude", END_TO_END]),
    )?;
    // Outside the workspace.
    shell::run(
        workspace
            .cargo()
            .args(["test", "--quiet", "--locked", "--all-features"])
            .args(["--manifest-path", "clients/rust/profiler-mark/Cargo.toml"])
            .args(["--target-dir", "target/clients"]),
    )?;
    Ok(tests)
}

/// The tier `e2e`.
pub fn end_to_end(workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
    obtain_programs()?;
    on_kernel(workspace, Tests::EndToEnd, selection)
}

/// The tier `long`.
pub fn long(workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
    obtain_programs()?;
    // A test starts `cargo xtask run`, which would build it in the time of the test.
    bpf::build_optimized(workspace)?;
    on_kernel(workspace, Tests::Long, selection)
}

/// Programs that end-to-end tests start.
fn obtain_programs() -> Result<()> {
    const READERS: [(&str, &str); 5] = [
        ("perf", "linux-perf"),
        ("bpftrace", "bpftrace"),
        ("jq", "jq"),
        ("ss", "iproute2"),
        ("valgrind", "valgrind"),
    ];
    apt::obtain(&READERS, "independent readers of the same values")?;
    apt::obtain(&[("c++", "g++")], "a C++ program that sends marks")
}

/// The tier `counters` on this machine's PMU.
pub fn counters(workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
    on_kernel(workspace, Tests::Counters, selection)
}

/// The tier `soak`.
pub fn soak(workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
    on_kernel(workspace, Tests::Soak, selection)
}

/// The tier `gpu`.
pub fn gpu(workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
    let listed = shell::stdout(Command::new("nvidia-smi").arg("--list-gpus"));
    let listed = listed.context("no NVIDIA GPU: nvidia-smi failed")?;
    if !listed.lines().any(|line| line.starts_with("GPU ")) {
        bail!("no NVIDIA GPU: nvidia-smi lists none");
    }
    on_kernel(workspace, Tests::Gpu, selection)
}

/// The tier `hostile`.
pub fn hostile(workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
    on_kernel(workspace, Tests::Hostile, selection)
}

/// The tier `jobs`, with Debian's Slurm and Open MPI.
pub fn jobs(workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
    const PROGRAMS: [(&str, &str); 7] = [
        ("slurmctld", "slurmctld"),
        ("slurmd", "slurmd"),
        ("srun", "slurm-client"),
        ("munged", "munge"),
        ("mpirun", "openmpi-bin"),
        ("setpriv", "util-linux"),
        ("systemd-analyze", "systemd"),
    ];
    apt::obtain(&PROGRAMS, "batch jobs to profile")?;
    // Debian's openmpi-bin has the compilers without their headers.
    let compile = ["-fsyntax-only", "-include", "mpi.h", "-x", "c", "/dev/null"];
    if shell::run_quietly(Command::new("mpicc").args(compile)).is_err() {
        apt::obtain(&[("mpi.h", "libopenmpi-dev")], "MPI programs to profile")?;
    }
    apt::obtain(&[("gfortran", "gfortran")], "a Fortran program with MPI")?;
    on_kernel(workspace, Tests::Jobs, selection)
}

/// The tier `readers`.
pub fn readers(workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
    apt::obtain(&[("java", "default-jre-headless")], "Java for Spark")?;
    python::READERS.obtain(workspace)?;
    python::FORMATS.obtain(workspace)?;
    build(
        workspace,
        &["--example=every_table"],
        "building a program that writes every table",
    )?;
    fleet::generator(workspace)?;
    fleet::samples(workspace, &profiler(workspace)?)?;
    on_kernel(workspace, Tests::Readers, selection)
}

/// The tier `browser`, with Debian's Chromium.
pub fn browser(workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
    apt::obtain(&[("chromium", "chromium")], "a browser that opens reports")?;
    python::BROWSER.obtain(workspace)?;
    python::MLFLOW.obtain(workspace)?;
    docs::site(workspace)?;
    on_kernel(workspace, Tests::Browser, selection)
}

/// The tier `oar`, in a Debian below `target/`.
pub fn oar(workspace: &Workspace, selection: Selection<'_>) -> Result<String> {
    apt::obtain(&[("debootstrap", "debootstrap")], "a Debian for OAR")?;
    let root = workspace.target.join("oar");
    if !root.exists() {
        let script = workspace.root.join("tests/environments/oar/make.sh");
        let mut make = Command::new("sh");
        let step = "creating a Debian with OAR (some minutes)";
        shell::run_slowly(make.arg(script).arg(root), step)?;
    }
    on_kernel(workspace, Tests::Oar, selection)
}

fn on_kernel(workspace: &Workspace, tests: Tests, selection: Selection<'_>) -> Result<String> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        bail!(
            "this kernel has no BTF (/sys/kernel/btf/vmlinux): boot a kernel with CONFIG_DEBUG_INFO_BTF=y"
        );
    }
    let by_sudo = !shell::is_root();
    if by_sudo && shell::which("sudo").is_none() {
        bail!("root is required: run as root or install sudo");
    }
    let python = python::obtain(workspace)?;
    let profiler = profiler(workspace)?;
    build(workspace, &["--tests"], "building the tests")?;
    let mut command = runner(workspace, tests, selection)?;
    command
        .env("PROFILER_BIN", profiler)
        .env("PROFILER_TEST_PYTHON", &python)
        .env(
            "PROFILER_TEST_READERS",
            python::READERS.interpreter(workspace),
        )
        .env(
            "PROFILER_TEST_FORMATS",
            python::FORMATS.interpreter(workspace),
        )
        .env(
            "PROFILER_TEST_MLFLOW",
            python::MLFLOW.interpreter(workspace),
        )
        .env(
            "PROFILER_TEST_BROWSER",
            python::BROWSER.interpreter(workspace),
        )
        .env(
            "PROFILER_TEST_EVERY_TABLE",
            workspace.target.join("debug/examples/every_table"),
        )
        .env(
            "PROFILER_TEST_FLEET",
            workspace.target.join("release/examples/fleet"),
        )
        .env(
            "PROFILER_TEST_SAMPLES",
            workspace.target.join("fleet/samples"),
        )
        .env("PROFILER_TEST_OAR", workspace.target.join("oar"))
        .env(
            "PROFILER_TEST_SITE",
            workspace.target.join("site/html/index.html"),
        );
    let guard = shell::this_program()?;
    let sudo = if by_sudo {
        "sudo --preserve-env -- "
    } else {
        ""
    };
    let variable = format!("CARGO_TARGET_{}_RUNNER", host_triple()?.replace('-', "_"));
    command.env(
        variable.to_uppercase(),
        format!("{sudo}{} guard", guard.display()),
    );
    // Runs of root are not readable by others.
    let queries = (!by_sudo).then_some((workspace, &*python));
    run(command, queries)
}

/// A selection of tests.
#[derive(Clone, Copy, PartialEq)]
enum Tests {
    /// Tests of single crates.
    Unit,
    /// End-to-end tests.
    EndToEnd,
    /// The end-to-end tests that take longest.
    Long,
    /// End-to-end tests that need a PMU.
    Counters,
    /// End-to-end tests that need a GPU.
    Gpu,
    /// End-to-end tests that need Slurm and Open MPI.
    Jobs,
    /// End-to-end tests that need a browser.
    Browser,
    /// End-to-end tests that need OAR.
    Oar,
    /// Attacks.
    Hostile,
    /// End-to-end tests that need other readers of Parquet.
    Readers,
    /// Tests that take hours.
    Soak,
}

/// Builds the profiler and returns its path.
pub fn profiler(workspace: &Workspace) -> Result<PathBuf> {
    bpf::build(workspace)?;
    bpf::build_profiler(workspace, false)
}

fn build(workspace: &Workspace, targets: &[&str], progress: &str) -> Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--quiet", "--workspace"]);
    shell::run_slowly(cargo.args(targets), progress)
}

/// nextest if it is installed; `cargo test` otherwise.
fn runner(workspace: &Workspace, tests: Tests, selection: Selection<'_>) -> Result<Command> {
    let mut command = workspace.cargo();
    if shell::run_quietly(workspace.cargo().args(["nextest", "--version"])).is_ok() {
        let selected = match tests {
            Tests::Unit => format!("not package({END_TO_END})"),
            Tests::EndToEnd => {
                // `--stress` selects by name.
                let is_stress = selection.stress.is_some();
                let others = EXCLUDED
                    .iter()
                    .filter(|name| !is_stress || **name != HOSTILE);
                let without = others.chain(LONG.iter().filter(|_| !is_stress));
                let without = without.map(|name| format!(" - test(/^{name}/)"));
                format!("package({END_TO_END}){}", without.collect::<String>())
            }
            Tests::Long => {
                let names = LONG.join("|");
                format!("package({END_TO_END}) & test(/^({names})/)")
            }
            Tests::Counters => format!("package({END_TO_END}) & test(/^{NEED_COUNTERS}/)"),
            Tests::Gpu => format!("package({END_TO_END}) & test(/^{NEED_GPU}/)"),
            Tests::Jobs => format!("package({END_TO_END}) & test(/^{NEED_JOBS}/)"),
            Tests::Browser => format!("package({END_TO_END}) & test(/^{NEED_BROWSER}/)"),
            Tests::Oar => format!("package({END_TO_END}) & test(/^{NEED_OAR}/)"),
            Tests::Hostile if selection.is_quick => {
                let names = LONG_ATTACKS.join("|");
                format!("package({END_TO_END}) & test(/^{HOSTILE}/) - test(/^{HOSTILE}({names})$/)")
            }
            Tests::Hostile => format!("package({END_TO_END}) & test(/^{HOSTILE}/)"),
            Tests::Readers => format!("package({END_TO_END}) & test(/^{NEED_READERS}/)"),
            Tests::Soak => format!("package({END_TO_END}) & test(/^{SOAK}/)"),
        };
        command
            .args([
                "nextest",
                "run",
                "--workspace",
                "--cargo-quiet",
                "--no-fail-fast",
            ])
            .args(["--filterset", &selected]);
        if tests == Tests::Unit {
            command.arg("--status-level=slow");
        } else {
            // These tests measure and would disturb each other.
            command.args(["--test=e2e", "--test=kernel", "--test-threads=1"]);
        }
        if let Some(times) = selection.stress {
            command.args(["--retries=0", &format!("--stress-count={times}")]);
        }
        command.args(selection.filter);
        return Ok(command);
    }
    if selection.stress.is_some() {
        bail!("--stress requires cargo-nextest: run `cargo install --locked cargo-nextest`");
    }
    command.args(["test", "--no-fail-fast"]);
    if tests == Tests::Unit {
        command.args(["--workspace", "--all-targets", "--exclude", END_TO_END]);
    } else {
        command.args(["--package", END_TO_END]);
    }
    command.arg("--").args(selection.filter);
    match tests {
        Tests::Unit => &mut command,
        Tests::EndToEnd => {
            let skipped = EXCLUDED.into_iter().chain(LONG);
            let skipped = skipped.flat_map(|name| ["--skip", name]);
            command.arg("--test-threads=1").args(skipped)
        }
        Tests::Long => command.arg("--test-threads=1").args(LONG),
        Tests::Counters => command.args(["--test-threads=1", NEED_COUNTERS]),
        Tests::Gpu => command.args(["--test-threads=1", NEED_GPU]),
        Tests::Jobs => command.args(["--test-threads=1", NEED_JOBS]),
        Tests::Browser => command.args(["--test-threads=1", NEED_BROWSER]),
        Tests::Oar => command.args(["--test-threads=1", NEED_OAR]),
        Tests::Hostile => {
            let skipped = LONG_ATTACKS.iter().filter(|_| selection.is_quick);
            let skipped =
                skipped.flat_map(|name| ["--skip".to_owned(), format!("{HOSTILE}{name}")]);
            command.args(["--test-threads=1", HOSTILE]).args(skipped)
        }
        Tests::Readers => command.args(["--test-threads=1", NEED_READERS]),
        Tests::Soak => command.args(["--test-threads=1", SOAK]),
    };
    Ok(command)
}

/// Runs the test runner, with a process that answers queries if there is an interpreter; returns the
/// number of tests, and which of them were flaky. It fails if no test ran.
fn run(mut command: Command, queries: Option<(&Workspace, &Path)>) -> Result<String> {
    let name = shell::display(&command);
    let directory = RunDirectory::create()?;
    let server =
        queries.map(|(workspace, python)| QueryServer::start(workspace, python, directory.path()));
    let server = server.transpose()?;
    if let Some(server) = &server {
        command.env(queries::SOCKET, server.socket());
    }
    let mut child = command
        .env("TMPDIR", directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{name}`"))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let errors = thread::spawn(move || stderr.map(|pipe| relay(pipe, std::io::stderr())));
    let printed = stdout.map(|pipe| relay(pipe, std::io::stdout()));
    let printed = [printed, errors.join().unwrap_or_default()].map(Option::unwrap_or_default);
    let count: u64 = printed.iter().map(|printed| printed.passed).sum();
    let flaky = printed.each_ref().map(|printed| printed.flaky.as_slice());
    let flaky = match flaky.concat().join(", ") {
        names if names.is_empty() => names,
        names => format!("; flaky: {names}"),
    };
    let status = child
        .wait()
        .with_context(|| format!("waiting for `{name}`"))?;
    // They do not fail: the next test begins without what was left.
    for line in directory.left().lines() {
        shell::progress(line);
    }
    // nextest 0.9.143 ends with 0 although iterations of --stress-count failed.
    let failed: u64 = printed
        .iter()
        .map(|printed| printed.failed_iterations)
        .sum();
    if !status.success() || failed != 0 {
        let failures = printed.map(|printed| printed.failures.text()).concat();
        let iterations = match failed {
            0 => String::new(),
            failed => format!("; failed iterations: {failed}"),
        };
        bail!("`{name}` failed ({status}){iterations}{flaky}{failures}");
    }
    if count == 0 {
        bail!("`{name}` ran no tests");
    }
    Ok(format!("{count} tests{flaky}"))
}

/// What a test runner has printed.
#[derive(Default)]
struct Printed {
    /// Number of passed tests.
    passed: u64,
    /// Tests that passed only when they were repeated.
    flaky: Vec<String>,
    /// Iterations of `--stress` with a failed test.
    failed_iterations: u64,
    failures: Failures,
}

/// Copies the output of a test runner.
fn relay(from: impl Read, mut to: impl Write) -> Printed {
    let mut printed = Printed::default();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        // A closed stdout must not stop the tests.
        let _ = to.write_all(&line).and_then(|()| to.write_all(b"\n"));
        let line = String::from_utf8_lossy(&line);
        printed.passed += passed_tests(&line).unwrap_or(0);
        printed.failed_iterations += failed_iterations(&line).unwrap_or(0);
        printed.flaky.extend(flaky_test(&line).map(str::to_owned));
        printed.failures.line(&line);
    }
    printed
}

/// The test of nextest's `FLAKY 2/3 [   0.1s] (3/3) e2e::e2e process::exit_codes`.
fn flaky_test(line: &str) -> Option<&str> {
    let line = line.trim_start().strip_prefix("FLAKY ")?;
    line.rsplit(' ').next()
}

/// Parses nextest's `Summary [ 0.1s] 3 tests run: 3 passed, 0 skipped` and libtest's
/// `test result: ok. 3 passed; 0 failed`.
fn passed_tests(line: &str) -> Option<u64> {
    let line = line.trim_start();
    if !line.starts_with("Summary [") && !line.starts_with("test result:") {
        return None;
    }
    number_before(line, "passed")
}

/// Parses nextest's `Summary [ 902.379s] 30/30 stress run iterations: 25 passed, 5 failed`.
fn failed_iterations(line: &str) -> Option<u64> {
    let iterations = line.split_once(" stress run iterations: ")?.1;
    number_before(iterations, "failed")
}

/// The number in front of a word.
fn number_before(line: &str, what: &str) -> Option<u64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let index = words.iter().position(|word| word.starts_with(what))?;
    words.get(index.checked_sub(1)?)?.parse().ok()
}

fn host_triple() -> Result<String> {
    let version = shell::stdout(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .context("`rustc -vV` without a host")
}

#[cfg(test)]
mod tests {
    use super::{failed_iterations, flaky_test, passed_tests};

    #[test]
    fn counts_the_tests_of_both_runners() {
        let nextest =
            "     Summary [   0.113s] 12 tests run: 11 passed (1 slow), 1 failed, 3 skipped";
        assert_eq!(passed_tests(nextest), Some(11));
        let libtest = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured";
        assert_eq!(passed_tests(libtest), Some(3));
        assert_eq!(passed_tests("        PASS [   0.005s] xtask passed"), None);
    }

    #[test]
    fn failed_iterations_are_counted() {
        let failed = "     Summary [ 902.379s] 30/30 stress run iterations: 25 passed, 5 failed";
        assert_eq!(failed_iterations(failed), Some(5));
        let passed = "     Summary [   2.379s] 30/30 stress run iterations: 30 passed";
        assert_eq!(failed_iterations(passed), None);
        let single = " Stress test [  28.202s] iteration 29/30: 15 tests run: 14 passed, 1 failed";
        assert_eq!(failed_iterations(single), None);
    }

    #[test]
    fn repeated_tests_are_named() {
        let line = "   FLAKY 2/3 [   0.006s] (3/3) e2e::e2e process::exit_codes";
        assert_eq!(flaky_test(line), Some("process::exit_codes"));
        let summary = "     Summary [   0.133s] 3 tests run: 3 passed (1 flaky), 0 skipped";
        assert_eq!(
            (flaky_test(summary), passed_tests(summary)),
            (None, Some(3))
        );
        assert_eq!(
            flaky_test("  TRY 2 PASS [   0.006s] (3/3) e2e::e2e a"),
            None
        );
    }
}
