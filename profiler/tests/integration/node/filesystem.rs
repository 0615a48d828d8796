//! `filesystem` on real mounts, one of which does not answer.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::AsRawFd as _,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use rustix::fs::{OFlags, fcntl_setfl};

use profiler::sources::filesystem;

use test_support::{Reader, Rows, Tree};

/// A mount, unmounted on drop.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(kind: &str, options: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mount = Command::new("mount")
            .args(["-i", "-t", kind, "-o", options, "none"])
            .arg(directory.path())
            .status();
        assert!(mount.expect("mount").success(), "only root may mount");
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Id of what is mounted at a path; none of a mount if there is nothing.
fn mount_id(path: &Path) -> u32 {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("readable");
    let mut ids = mounts.lines().filter_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        (Path::new(fields[4]) == path).then(|| fields[0].parse().expect("a number"))
    });
    ids.next_back().unwrap_or(u32::MAX)
}

/// A fixture with these mounts: device, mount point, file system type.
fn tree(user: &str, mounts: &[(&str, &Path, &str)]) -> Tree {
    let tree = Tree::of("vm", user);
    let lines = mounts.iter().map(|(dev, path, kind)| {
        let id = mount_id(path);
        format!("{id} 1 {dev} / {} rw - {kind} none rw\n", path.display())
    });
    tree.put("proc/self/mountinfo", lines.collect::<String>());
    tree
}

fn find(rows: &Rows, path: &Path) -> Option<usize> {
    let path = path.to_str();
    (0..rows.len()).find(|row| rows.text(*row, "mount").as_deref() == path)
}

/// Waits for the rows at the end of a run.
fn last(reader: &mut Reader) -> (Rows, Vec<String>) {
    let begin = Instant::now();
    let mut errors = Vec::new();
    loop {
        let (mut batches, result) = reader.attempt(true);
        errors.extend(result.err().map(|error| format!("{error:#}")));
        if let Some(batch) = batches.pop() {
            return (Rows(Some(batch)), errors);
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "no rows");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn each_file_system_has_one_row_with_its_size() {
    let mounted = Mounted::new("tmpfs", "size=8m,nr_inodes=1000");
    std::fs::write(mounted.path().join("file"), vec![1; 3 << 20]).expect("written");
    let proc = Path::new("/proc");
    let tree = tree(
        "filesystem",
        &[
            ("0:5", proc, "proc"),
            ("0:77", mounted.path(), "tmpfs"),
            ("0:77", Path::new("/bound/elsewhere"), "tmpfs"),
            ("0:78", Path::new("/none/at/all"), "ext4"),
            ("0:79", Path::new("/sys"), "notinthelist"),
        ],
    );
    let mut reader = Reader::open(&filesystem::SPEC, &tree.host());
    let (rows, errors) = last(&mut reader);
    assert_eq!((rows.len(), errors.len()), (1, 0), "{errors:?}");
    let row = find(&rows, mounted.path()).expect("a row");
    let of = |name| rows.get(row, name);
    assert_eq!((of("total"), of("used")), (Some(8 << 20), Some(3 << 20)));
    assert_eq!(
        (of("free"), of("available")),
        (Some(5 << 20), Some(5 << 20))
    );
    assert_eq!(of("inodes_total"), Some(1000));
    assert_eq!(of("inodes_free"), Some(998));
}

/// A FUSE server that answers only FUSE_INIT.
fn silent_server() -> (Mounted, File) {
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .expect("FUSE");
    let directory = tempfile::tempdir().expect("a directory");
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        device.as_raw_fd()
    );
    rustix::mount::mount(
        "silent",
        directory.path(),
        "fuse.silent",
        rustix::mount::MountFlags::empty(),
        Some(std::ffi::CString::new(options).expect("no zero").as_c_str()),
    )
    .expect("mounts");
    let mounted = Mounted(directory);
    // FUSE_INIT (include/uapi/linux/fuse.h): the answer has the id of the request and version 7.19.
    let mut request = vec![0; 1 << 17];
    let length = (&device).read(&mut request).expect("the first request");
    assert!(length >= 40, "{length} bytes: no header");
    let mut answer = [0u32; 4 + 16];
    answer[0] = 80;
    answer[2] = u32::from_ne_bytes(request[8..12].try_into().expect("4 bytes"));
    answer[3] = u32::from_ne_bytes(request[12..16].try_into().expect("4 bytes"));
    (answer[4], answer[5]) = (7, 19);
    let bytes: Vec<u8> = answer.iter().flat_map(|word| word.to_ne_bytes()).collect();
    (&device).write_all(&bytes).expect("answered");
    (mounted, device)
}

/// Number of sizes that a source of this process has requested from the server since the last call.
fn requested(mut server: &File) -> usize {
    // include/uapi/linux/fuse.h: struct fuse_in_header
    const FUSE_STATFS: u32 = 17;
    let word = |request: &[u8], at: usize| {
        u32::from_ne_bytes(request[at..at + 4].try_into().expect("4 bytes"))
    };
    let is_ours = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1));
        parent == Some(&std::process::id().to_string())
    };
    let mut request = vec![0; 1 << 17];
    let mut count = 0;
    while server.read(&mut request).is_ok() {
        count += usize::from(word(&request, 4) == FUSE_STATFS && is_ours(word(&request, 32)));
    }
    count
}

#[test]
fn a_hung_file_system_delays_no_other_and_is_reported() {
    let (silent, server) = silent_server();
    fcntl_setfl(&server, OFlags::NONBLOCK).expect("a descriptor");
    let mounted = Mounted::new("tmpfs", "size=1m");
    let tree = tree(
        "filesystem-hung",
        &[
            ("0:90", silent.path(), "fuse.silent"),
            ("0:91", mounted.path(), "tmpfs"),
        ],
    );
    // A sample that waited would have the answer, or the error after 1 s. A busy machine can delay a
    // sample for so long that it has them as well.
    let (attempts, mut reader) = (0..10)
        .find_map(|attempt| {
            let mut reader = Reader::open(&filesystem::SPEC, &tree.host());
            let (mut batches, result) = reader.attempt(false);
            let waited = find(&Rows(batches.pop()), silent.path()).is_some();
            (!waited && result.is_ok()).then_some((attempt + 1, reader))
        })
        .expect("a sample that does not wait");
    for again in [false, true] {
        let (rows, errors) = last(&mut reader);
        let hung = find(&rows, silent.path()).expect("a row");
        assert_eq!(rows.get(hung, "total"), None);
        let other = find(&rows, mounted.path()).expect("a row");
        assert_eq!(rows.get(other, "total"), Some(1 << 20));
        assert!(errors[0].contains("no answer within 1 s"), "{errors:?}");
        // The second time, the source neither asks it nor waits for it.
        let requested = requested(&server);
        let expected = if again { 0..=0 } else { 1..=attempts };
        assert!(expected.contains(&requested), "{requested}, {expected:?}");
    }
    // The end of the server aborts pending requests: the mount answers again, with an error.
    drop(server);
    while !last(&mut reader).1[0].contains("not connected") {}
}
