//! A container image that contains nothing else: an archive in the layout of the Open Container
//! Initiative, which Podman, Docker, Apptainer and Kubernetes' runtimes import.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{Dist, SUMMARY, VERSION, tarball};
use crate::shell;

/// Directories of the program's data in the image.
const OUT: &str = "/profiles";

pub fn make(dist: &Dist) -> Result<Vec<PathBuf>> {
    let program = dist.static_program()?;
    let layout = dist.scratch.join("image");
    let root = dist.scratch.join("image-root");
    let files = super::files::Files::program(program)?;
    files.write(&root, dist.source)?;
    let layer = dist.scratch.join("layer.tar");
    tarball::pack(dist.source, &root, Path::new("."), &layer, None)?;

    let _ = fs::remove_dir_all(&layout);
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let created = shell::stdout(Command::new("date").args([
        "-u",
        "+%Y-%m-%dT%H:%M:%SZ",
        "-d",
        &format!("@{}", dist.source.time),
    ]))?;
    let content = fs::read(&layer)?;
    let layer = blob(&blobs, "application/vnd.oci.image.layer.v1.tar", &content)?;
    let labels = json!({
        "org.opencontainers.image.title": "profiler",
        "org.opencontainers.image.description": SUMMARY,
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.revision": dist.source.commit,
        "org.opencontainers.image.licenses": "(MIT OR Apache-2.0) AND (MIT OR Apache-2.0 OR GPL-2.0-only)",
    });
    let config = json!({
        "created": created.trim(),
        // Names of the architectures as in Go, which are Debian's.
        "architecture": dist.arch.debian,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/profiler"],
            "Cmd": ["--help"],
            "Env": ["PATH=/usr/bin", format!("PROFILER_OUT={OUT}")],
            "WorkingDir": "/",
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
    });
    let config = blob(
        &blobs,
        "application/vnd.oci.image.config.v1+json",
        &serde_json::to_vec(&config)?,
    )?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
        "annotations": labels,
    });
    let mut manifest = blob(
        &blobs,
        "application/vnd.oci.image.manifest.v1+json",
        &serde_json::to_vec(&manifest)?,
    )?;
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": VERSION });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(layout.join("index.json"), serde_json::to_vec(&index)?)?;
    fs::write(
        layout.join("oci-layout"),
        br#"{"imageLayoutVersion":"1.0.0"}"#,
    )?;
    let archive = dist
        .out
        .join(format!("profiler-{VERSION}-{}.oci.tar", dist.arch.name));
    tarball::pack(dist.source, &layout, Path::new("."), &archive, None)?;
    Ok(vec![archive])
}

/// Stores a blob under the hash of its content; returns its descriptor.
fn blob(directory: &Path, media_type: &str, content: &[u8]) -> Result<Value> {
    let path = directory.join("new");
    fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
    let sum = shell::stdout(Command::new("sha256sum").arg(&path))?;
    let hash = sum.split_whitespace().next().context("a checksum")?;
    fs::rename(&path, directory.join(hash))?;
    Ok(json!({
        "mediaType": media_type,
        "digest": format!("sha256:{hash}"),
        "size": content.len(),
    }))
}
