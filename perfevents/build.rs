//! Embeds every `data/<vendor>/<uarch>.toml`, so that a new file needs no registration.

use std::{env, error::Error, ffi::OsStr, fmt::Write as _, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let data = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("data");
    println!("cargo::rerun-if-changed={}", data.display());
    let mut files = Vec::new();
    for vendor in fs::read_dir(&data)? {
        let vendor = vendor?.path();
        if !vendor.is_dir() {
            continue;
        }
        println!("cargo::rerun-if-changed={}", vendor.display());
        for file in fs::read_dir(&vendor)? {
            files.push(file?.path());
        }
    }
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "toml")
    });
    files.sort();
    let mut code = String::from("&[\n");
    for file in &files {
        // `{:?}` escapes the names for string literals.
        let id = file.file_stem().and_then(OsStr::to_str);
        let (Some(id), Some(file)) = (id, file.to_str()) else {
            return Err(format!("{}: file name is not UTF-8", file.display()).into());
        };
        writeln!(code, "    ({id:?}, include_str!({file:?})),")?;
    }
    code.push_str("]\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("data.rs"), code)?;
    Ok(())
}
