//! Paths given by the user of a profiler with file capabilities are opened with the user's rights.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Output, Stdio},
};

use e2e::{
    attacker::{Installed, UID, VICTIM, command_as, directory_of, secret_in},
    runs::ProcessGroup,
};
use tempfile::TempDir;

/// Arguments and environment variables.
type Attempt<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

/// Runs the profiler as the attacker, in a directory of the attacker.
fn attack(installed: &Installed, home: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    command_as(UID, installed.binary())
        .args(["run", "--duration", "1s", "--out"])
        .arg(home.join("runs"))
        .args(args)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("the profiler starts")
}

/// Whether a text is in stdout, stderr or any file below a directory.
fn is_disclosed(text: &str, output: &Output, directory: &Path) -> bool {
    let has = |bytes: &[u8]| {
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    };
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let entry = entry.expect("an entry");
            let kind = entry.file_type().expect("its kind");
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() && has(&fs::read(entry.path()).expect("root reads")) {
                return true;
            }
        }
    }
    has(&output.stdout) || has(&output.stderr)
}

/// Each option and variable with a path names a file of root, whose content is neither printed nor
/// stored.
#[test]
fn unreadable_files_are_not_disclosed() {
    let installed = Installed::with_file_capabilities();
    let home = directory_of(UID);
    let vault = TempDir::new().expect("a temporary directory");
    fs::set_permissions(vault.path(), Permissions::from_mode(0o755)).expect("owned");
    let (secret, content) = secret_in(vault.path());
    let table = home.path().join("tables/vault.toml");
    fs::create_dir(home.path().join("tables")).expect("a directory");
    fs::set_permissions(home.path().join("tables"), Permissions::from_mode(0o755)).expect("owned");
    symlink(&secret, table).expect("a link");
    let secret = secret.to_str().expect("text");
    let tables = home.path().join("tables");
    let tables = tables.to_str().expect("text");
    let command = ["--", "true"];
    let attempts: [Attempt<'_>; 7] = [
        (&["--config", secret], &[]),
        (&[], &[("PROFILER_CONFIG", secret)]),
        (&["--stop-file", secret], &[]),
        (&["--perfevents", tables], &[]),
        (&[], &[("PROFILER_PERFEVENTS", tables)]),
        (&["--log", secret], &[]),
        (&["--cgroup", secret], &[]),
    ];
    for (args, variables) in attempts {
        let args = if args.contains(&"--cgroup") {
            args.to_vec()
        } else {
            [args, &command].concat()
        };
        let output = attack(&installed, home.path(), &args, variables);
        let word = content.split(':').nth(1).expect("a password");
        assert!(
            !is_disclosed(word, &output, home.path()),
            "{args:?} {variables:?}: {output:?}"
        );
    }
    assert_eq!(
        fs::read_to_string(secret).expect("root reads"),
        format!("{content}\n"),
        "nothing is appended to it"
    );
    // The profiler reports that the attacker cannot read the file.
    let refused = attack(
        &installed,
        home.path(),
        &["--config", secret, "--", "true"],
        &[],
    );
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("Permission denied"), "{stderr}");
}

/// The environment of another user's process, given as the file of a batch script.
#[test]
fn environments_of_others_are_not_disclosed() {
    let installed = Installed::with_file_capabilities();
    let home = directory_of(UID);
    let victim = ProcessGroup::start(
        command_as(VICTIM, "sleep")
            .arg("60")
            .env_clear()
            .env("TOKEN", "correct-horse"),
    );
    let environment = format!("/proc/{}/environ", victim.pid());
    let args = ["--stop-file", &*environment, "--", "true"];
    let output = attack(&installed, home.path(), &args, &[]);
    assert!(
        !is_disclosed("correct-horse", &output, home.path()),
        "{output:?}"
    );
}

/// Other roots for `/proc` and `/sys` would be read with the capabilities.
#[test]
fn procfs_and_sysfs_options_are_refused_with_file_capabilities() {
    let installed = Installed::with_file_capabilities();
    let home = directory_of(UID);
    let path = home.path().to_str().expect("text");
    for option in ["--procfs", "--sysfs"] {
        let output = attack(&installed, home.path(), &[option, path, "--", "true"], &[]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains("--procfs and --sysfs"), "{stderr}");
    }
    assert!(!home.path().join("runs").exists());
}

/// An error in a configuration file reports the number of the line, not its content.
#[test]
fn errors_do_not_quote_the_config_file() {
    let home = directory_of(UID);
    let file = home.path().join("settings.toml");
    fs::write(&file, "interval = '1s'\nhidden hunter2\n").expect("written");
    let output = std::process::Command::new(e2e::setting("PROFILER_BIN"))
        .args(["run", "--config"])
        .arg(&file)
        .args(["--", "true"])
        .output()
        .expect("the profiler starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("settings.toml: line 2: "), "{stderr}");
    assert!(!stderr.contains("hunter2"), "{stderr}");
}

/// A set-uid profiler would open the user's paths as root.
#[test]
fn setuid_profiler_refuses_to_run() {
    let installed = Installed::with_file_capabilities();
    let binary = installed.binary();
    rustix::fs::removexattr(&binary, "security.capability").expect("owned");
    fs::set_permissions(&binary, Permissions::from_mode(0o4755)).expect("owned");
    let home = directory_of(UID);
    let output = attack(&installed, home.path(), &["--", "true"], &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains("set-uid"), "{stderr}");
}
