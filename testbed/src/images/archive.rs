//! An image in the format of `docker save`, which ctr, docker and podman all load, from one layer.

use std::fs::File;
use std::io::{Read as _, Write};
use std::path::Path;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use crate::error::{Context as _, Result};
use crate::place::digest;

/// How an image starts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Start {
    pub(crate) command: &'static [&'static str],
    pub(crate) user: &'static str,
    pub(crate) env: &'static [&'static str],
}

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Wraps the tar file at `layer` into an image called `reference`, written to `out`.
pub(crate) fn write(layer: &Path, reference: &str, start: Start, out: &Path) -> Result<()> {
    pack(layer, reference, start, out).doing(|| format!("write the image {reference}"))
}

fn pack(layer: &Path, reference: &str, start: Start, out: &Path) -> std::io::Result<()> {
    let layer_digest = file_digest(layer)?;
    let mut env = vec![PATH];
    env.extend(start.env);
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": { "Env": env, "Cmd": start.command, "User": start.user },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_digest}")] },
        "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "testbed" }],
    })
    .to_string();
    let config_name = format!("{}.json", digest(config.as_bytes()));
    let layer_name = format!("{layer_digest}/layer.tar");
    let manifest = json!([{ "Config": config_name, "RepoTags": [reference], "Layers": [layer_name] }]).to_string();

    let mut tar = Builder::new(File::create(out)?);
    let mut file = File::open(layer)?;
    let size = file.metadata()?.len();
    tar.append_data(&mut header(EntryType::Regular, 0o644, size), &layer_name, &mut file)?;
    for (name, text) in [(config_name.as_str(), &config), ("manifest.json", &manifest)] {
        let size = text.len().try_into().expect("a length fits in u64");
        tar.append_data(&mut header(EntryType::Regular, 0o644, size), name, text.as_bytes())?;
    }
    tar.into_inner()?.flush()
}

/// A tar header without owner, time or anything else that changes from run to run.
pub(crate) fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn file_digest(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hash.update(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_names_its_parts() {
        let dir = tempfile::tempdir().unwrap();
        let (layer, out) = (dir.path().join("layer.tar"), dir.path().join("image.tar"));
        std::fs::write(&layer, b"not really a tar").unwrap();
        write(&layer, "localhost/x:1", Start { command: &["/x"], user: "65534", env: &[] }, &out).unwrap();

        let mut archive = tar::Archive::new(File::open(&out).unwrap());
        let mut files = std::collections::BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            files.insert(name, text);
        }
        let manifest: serde_json::Value = serde_json::from_str(&files["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], "localhost/x:1");
        let layer_name = manifest[0]["Layers"][0].as_str().unwrap();
        assert_eq!(files[layer_name], "not really a tar");
        let config: serde_json::Value = serde_json::from_str(&files[manifest[0]["Config"].as_str().unwrap()]).unwrap();
        assert_eq!(config["config"]["User"], "65534");
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", digest(b"not really a tar")));
    }
}
