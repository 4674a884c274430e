//! Aliquot's image, out of its OCI archive.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// What it has in its `PATH`.
pub const PROGRAMS: [&str; 5] = [
    "aliquot-scheduler",
    "aliquot-webhook",
    "aliquot-device-plugin",
    "aliquot-monitor",
    "kubectl-aliquot",
];
/// What the agent installs on a node.
pub const LIMITER: [&str; 3] = ["libvgpu.so", "aliquot-hook", "aliquot-hook-limit"];
/// What else it installs there, to generate NVIDIA's CDI specification.
pub const TOOLKIT: [&str; 2] = ["nvidia-ctk", "nvidia-cdi-hook"];
/// Where it lists what is linked.
pub const SBOM: &str = "/usr/share/aliquot/sbom.spdx.json";

/// Its user, who is not root.
pub const USER: &str = "65532:65532";

/// The paths of all that is Aliquot's in it.
pub fn own_files() -> BTreeSet<String> {
    let programs = PROGRAMS.map(|name| format!("/usr/local/bin/{name}"));
    let installed = LIMITER.into_iter().chain(TOOLKIT);
    let installed = installed.map(|name| format!("/usr/local/lib/aliquot/{name}"));
    let all = programs.into_iter().chain(installed);
    all.chain([SBOM.to_owned()]).collect()
}

/// An image with its layers unpacked.
pub struct Image {
    /// The folder with what the image contains.
    pub root: PathBuf,
    /// Paths in the image of everything but folders, links too.
    pub files: BTreeSet<String>,
    /// The annotations of its manifest.
    pub annotations: Value,
    /// Its configuration.
    pub config: Value,
    /// The SBOM that is inside.
    pub sbom: Value,
}

fn unpack(archive: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    let mut tar = Command::new("tar");
    let done = tar.arg("-xf").arg(archive).arg("-C").arg(to).status()?;
    ensure!(done.success(), "{}: {done}", archive.display());
    Ok(())
}

fn json(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).context(path.display().to_string())?;
    Ok(serde_json::from_slice(&text)?)
}

impl Image {
    /// Unpacks the only image of an OCI archive into a folder.
    pub fn open(archive: &Path, folder: &Path) -> Result<Self> {
        let (oci, root) = (folder.join("oci"), folder.join("root"));
        unpack(archive, &oci)?;
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().context("no digest")?;
            anyhow::Ok(oci.join("blobs").join(digest.replace(':', "/")))
        };
        let index = json(&oci.join("index.json"))?;
        let entry = &index["manifests"][0];
        let manifest = json(&blob(entry)?)?;
        for layer in manifest["layers"].as_array().context("no layers")? {
            unpack(&blob(layer)?, &root)?;
        }
        let mut find = Command::new("find");
        let list = find.arg(&root).args(["!", "-type", "d"]).output()?;
        let list = String::from_utf8(list.stdout)?;
        let inside = root.to_string_lossy();
        let files = list.lines().map(|line| line.replacen(&*inside, "", 1));
        Ok(Self {
            files: files.collect(),
            annotations: entry["annotations"].clone(),
            config: json(&blob(&manifest["config"])?)?,
            sbom: json(&root.join(SBOM.trim_start_matches('/')))?,
            root,
        })
    }
}
