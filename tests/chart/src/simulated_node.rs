//! What an installation needs on a node without a GPU and a registry: images of the built programs, and
//! a simulated driver with a toolkit that describes it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_cluster::Cluster;
use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place, proc_folder};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::top;

const IMAGE: &str = "localhost/aliquot:test";
const KUBE_SCHEDULER: &str = "localhost/kube-scheduler:test";

/// The directory of the built binaries.
pub fn built() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let mut folders = program.ancestors().skip(1);
    let folder = folders.find(|folder| folder.join("aliquot-scheduler").is_file());
    Ok(folder
        .context("no binaries: cargo build --workspace")?
        .to_owned())
}

/// Aliquot's image by images/build.sh, as an archive.
pub async fn archive(archive: &Path) -> Result<()> {
    archive_with(archive, IMAGE, &built()?).await
}

/// The same of another name, with the library and the hook of this folder.
pub async fn archive_with(archive: &Path, name: &str, limiter: &Path) -> Result<()> {
    let folder = built()?;
    let made = tokio::process::Command::new(top("images/build.sh"))
        .args([folder.as_os_str(), archive.as_os_str()])
        .arg(name)
        // Only this machine loads them.
        .env("LIMITER", limiter)
        .env("NEWEST_GLIBC", "9.9")
        .output()
        .await?;
    ensure!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    Ok(())
}

/// Makes Aliquot's image and loads it.
pub async fn image(cluster: &Cluster) -> Result<()> {
    let file = cluster.state_dir().join("aliquot.tar");
    archive(&file).await?;
    load(cluster, &file).await
}

/// Loads an archive of [`archive`].
pub async fn load(cluster: &Cluster, archive: &Path) -> Result<()> {
    let import = ["images", "import", &*archive.to_string_lossy()];
    cluster.ctr(&import).await?.success()?;
    Ok(())
}

/// Removes Aliquot's image, if it is there.
pub async fn unload(cluster: &Cluster) -> Result<()> {
    let remove = ["images", "rm", "--sync", IMAGE];
    cluster.ctr(&remove).await?.success()?;
    Ok(())
}

/// Loads kube-scheduler's image.
pub async fn kube_scheduler(cluster: &Cluster) -> Result<()> {
    let folder = Command::new(top("tests/cluster/build.sh")).output()?;
    let kubebox = PathBuf::from(String::from_utf8(folder.stdout)?.trim()).join("kubebox");
    let file = [(kubebox.as_path(), "/kubebox")];
    cluster
        .import_image(KUBE_SCHEDULER, "/kubebox", &file)
        .await
}

/// The archive of that image.
pub fn kube_scheduler_archive(cluster: &Cluster) -> PathBuf {
    cluster.archive(KUBE_SCHEDULER).into()
}

/// The folder of the simulated driver, in the place of a real one's libraries and device nodes.
fn driver_folder(cluster: &Cluster) -> PathBuf {
    cluster.state_dir().join("parts/driver")
}

/// The state file of the node's simulated driver.
pub fn machine(cluster: &Cluster) -> PathBuf {
    driver_folder(cluster).join("gpusim.state")
}

/// Values that differ from a node with a real driver.
pub fn values_for(cluster: &Cluster) -> Result<Value> {
    let (state, driver) = (cluster.state_dir(), driver_folder(cluster));
    std::fs::create_dir_all(&driver)?;
    // In the place of the image's, which finds no simulated driver.
    let toolkit = state.join("parts/toolkit-of-test");
    std::fs::create_dir_all(&toolkit)?;
    std::fs::copy(place::library_path()?, driver.join(place::LIBRARY_NAME))?;
    let cuda = driver.join(place::CUDA_LIBRARY_NAME);
    std::fs::copy(place::cuda_library_path()?, &cuda)?;
    let machine = machine(cluster);
    let gpus = "name: node-1\ngpus:\n  - count: 2\n    model: NVIDIA A100-SXM4-80GB\n";
    SimulatedMachine::create(&machine, gpus)?;
    let spec = toolkit.join("driver.json");
    std::fs::write(&spec, nvidia_spec(&driver, &machine).to_string())?;
    place::write_toolkit(&toolkit, &spec)?;
    let mut values = image_values()?;
    values["devicePlugin"] = json!({
            "stateDir": state.join("parts/aliquot"),
            "cdiDir": cluster.cdi_dir(),
            "env": [
                {"name": "ALIQUOT_NVML_LIBRARY", "value": driver.join(place::LIBRARY_NAME)},
                {"name": STATE_VARIABLE, "value": machine},
                // Privileged containers have the device nodes, whatever NVIDIA's runtime was asked for.
                {"name": "ALIQUOT_VISIBLE_DEVICES", "value": "all"},
                // The node has a mount namespace of its own.
                {"name": "ALIQUOT_HOST_ROOT", "value": format!("/proc/{}/root", cluster.pid("mounts")?)},
                {"name": "ALIQUOT_PROC_DEVICES", "value": proc_folder(&machine).join("devices")},
                {"name": "ALIQUOT_TOOLKIT", "value": toolkit},
            ],
            // Not on the host as its first process sees it.
            "volumes": [
                {"name": "simulated-driver", "hostPath": {"path": driver}},
                {"name": "toolkit", "hostPath": {"path": toolkit}},
            ],
            "volumeMounts": [
                {"name": "simulated-driver", "mountPath": driver},
                {"name": "toolkit", "mountPath": toolkit},
            ],
    });
    Ok(values)
}

/// Values by which the chart uses the loaded images.
pub fn image_values() -> Result<Value> {
    let (image, tag) = IMAGE.split_once(':').context("no tag")?;
    let (kube, kube_tag) = KUBE_SCHEDULER.split_once(':').context("no tag")?;
    Ok(json!({
        "image": {"repository": image, "tag": tag, "pullPolicy": "Never"},
        "scheduler": {"kubeScheduler": {
            "image": {"registry": "", "repository": kube},
            "imageTag": kube_tag,
            "command": ["/kubebox", "scheduler"],
        }},
    }))
}

/// Gives every user access to the machine, as to device nodes.
pub fn open_machine(cluster: &Cluster) -> Result<()> {
    let folder = driver_folder(cluster);
    let open = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    open(&folder, 0o777)?;
    for file in std::fs::read_dir(&folder)? {
        let file = file?;
        if file.file_type()?.is_file() {
            open(&file.path(), 0o666)?;
        }
    }
    Ok(())
}

/// The driver's libraries, for whatever GPUs the machine has.
fn nvidia_spec(driver: &Path, machine: &Path) -> Value {
    let mount = |name: &str| {
        json!({"hostPath": driver.join(name), "containerPath": format!("/driver/{name}"),
            "options": ["ro", "nosuid", "nodev", "bind"]})
    };
    json!({
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [],
        "containerEdits": {
            "env": ["LD_LIBRARY_PATH=/driver", format!("{STATE_VARIABLE}={}", machine.display())],
            "mounts": [mount(place::CUDA_LIBRARY_NAME), mount(place::LIBRARY_NAME), {
                // In the place of device nodes.
                "hostPath": driver, "containerPath": driver,
                "options": ["rw", "nosuid", "nodev", "bind"],
            }],
        },
    })
}
