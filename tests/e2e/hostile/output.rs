//! A run directory prepared by another user, in a directory that all users can write to.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use e2e::{
    attacker::{UID, directory_of},
    runs::Profiler,
    setting,
};
use rustix::{process::Uid, thread::set_thread_uid};
use tempfile::TempDir;

/// Exit code if the output cannot be written.
const OUTPUT: i32 = 5;

/// A directory with the permissions of /tmp.
fn shared() -> TempDir {
    let out = TempDir::new().expect("a temporary directory");
    fs::set_permissions(out.path(), Permissions::from_mode(0o1777)).expect("owned");
    out
}

/// A directory owned by root, in place of /etc.
fn directory_of_root(above: &Path) -> PathBuf {
    let path = above.join("etc");
    fs::create_dir(&path).expect("a directory");
    fs::write(path.join("passwd"), "root\n").expect("a file");
    path
}

#[track_caller]
fn assert_untouched(directory: &Path) {
    let names: Vec<_> = fs::read_dir(directory)
        .expect("still there")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["passwd"]);
    let metadata = directory.metadata().expect("still there");
    assert_eq!((metadata.uid(), metadata.gid()), (0, 0));
}

/// Root's profiler does not write through a link in place of its run, for any owner of the files.
#[test]
fn symbolic_link_is_not_followed() {
    let (out, elsewhere) = (shared(), TempDir::new().expect("a temporary directory"));
    let etc = directory_of_root(elsewhere.path());
    symlink(&etc, out.path().join("slurm-4711")).expect("a link");
    for owner in [None, Some(UID)] {
        let mut profiler =
            Profiler::writing_to(out.path()).args(["--run-id", "slurm-4711", "--node"]);
        if let Some(owner) = owner {
            let owner = owner.to_string();
            profiler = profiler.env("SUDO_UID", &owner).env("SUDO_GID", &owner);
        }
        let refused = profiler
            .args(["-d", "200ms", "--source", "system"])
            .finish();
        assert_eq!(refused.code(), OUTPUT, "{}", refused.stderr);
        assert!(refused.stderr.contains("slurm-4711"), "{}", refused.stderr);
        assert_untouched(&etc);
    }
    let recovery = Command::new(setting("PROFILER_BIN"))
        .arg("recover")
        .arg(out.path().join("slurm-4711"))
        .status();
    assert_ne!(recovery.expect("the profiler starts").code(), Some(0));
    assert_untouched(&etc);
}

/// Files beside the runs that another user has put there stay as they are.
#[test]
fn descriptions_of_other_users_are_left_alone() {
    let (out, elsewhere) = (shared(), TempDir::new().expect("a temporary directory"));
    let etc = directory_of_root(elsewhere.path());
    let schema = out.path().join("schema.json");
    let old = "{\"edition\": \"schema 1, profiler 0.0.1, 1 columns\"}";
    fs::write(&schema, old).expect("a file");
    chown(&schema, Some(UID), Some(UID)).expect("root gives files away");
    symlink(etc.join("passwd"), out.path().join("README.md")).expect("a link");
    let profile = || {
        let finished = Profiler::writing_to(out.path())
            .args(["--node", "-d", "200ms", "--source", "system"])
            .finish();
        assert_eq!(finished.code(), 0, "{}", finished.stderr);
        assert!(
            !finished.stderr.contains("schema.json"),
            "{}",
            finished.stderr
        );
    };
    profile();
    assert_eq!(fs::read_to_string(&schema).expect("there"), old);
    let passwd = fs::read_to_string(etc.join("passwd")).expect("there");
    assert_eq!(passwd, "root\n");
    assert_untouched(&etc);
    // Of the same user, it is an older version.
    chown(&schema, Some(0), Some(0)).expect("root takes it");
    profile();
    let new = fs::read_to_string(&schema).expect("there");
    assert!(new.contains("\"tables\":"), "{new}");
}

/// In a directory of another user, this user could remove the data: an error instead of a success.
#[test]
fn directory_of_another_user_is_refused() {
    let out = shared();
    let trap = out.path().join("slurm-4711");
    fs::create_dir(&trap).expect("a directory");
    chown(&trap, Some(UID), Some(UID)).expect("root gives files away");
    let refused = Profiler::writing_to(out.path())
        .args(["--once", "--run-id", "slurm-4711", "--node"])
        .args(["-d", "200ms", "--source", "system"])
        .finish();
    assert_eq!(refused.code(), OUTPUT, "{}", refused.stderr);
    let why = format!("belongs to uid {UID}");
    assert!(refused.stderr.contains(&why), "{}", refused.stderr);
    assert_eq!(fs::read_dir(&trap).expect("there").count(), 0);
}

/// The owner of the directory replaces everything that root creates in it by links, while root
/// creates it and changes its owner.
#[test]
fn links_swapped_in_later_are_not_followed() {
    let (out, elsewhere) = (directory_of(UID), TempDir::new().expect("a directory"));
    let etc = directory_of_root(elsewhere.path());
    let ended = Arc::new(AtomicBool::new(false));
    let attack = {
        let (above, etc, ended) = (out.path().to_owned(), etc.clone(), ended.clone());
        move || {
            set_thread_uid(Uid::from_raw(UID)).expect("root may change its uid");
            let mut replaced = 0_u64;
            while !ended.load(Ordering::Relaxed) {
                replace(&above, &etc, &mut replaced);
            }
            replaced
        }
    };
    let attacker = std::thread::spawn(attack);
    let owner = UID.to_string();
    for run in 0..12 {
        let finished = Profiler::writing_to(out.path())
            .args(["--run-id", &format!("run-{run}"), "--node"])
            .args(["-d", "200ms", "-i", "50ms", "--checkpoint", "100ms"])
            .args(["--source", "system"])
            .env("SUDO_UID", &owner)
            .env("SUDO_GID", &owner)
            .finish();
        assert!(
            [0, OUTPUT].contains(&finished.code()),
            "{}",
            finished.stderr
        );
        assert_untouched(&etc);
    }
    ended.store(true, Ordering::Relaxed);
    let replaced = attacker.join().expect("it does not panic");
    // The directory of each run, and some directories in it.
    assert!(replaced > 12, "{replaced}");
}

/// Replaces each directory below `above` by a link, or removes the link.
fn replace(above: &Path, etc: &Path, replaced: &mut u64) {
    for entry in fs::read_dir(above).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_symlink() {
            let _ = fs::remove_file(&path);
        } else if kind.is_dir() {
            replace(&path, etc, replaced);
            if path.extension().is_some() {
                continue;
            }
            let moved = path.with_extension(format!("moved-{replaced}"));
            if fs::rename(&path, moved).is_ok() && symlink(etc, &path).is_ok() {
                *replaced += 1;
            }
        }
    }
}
