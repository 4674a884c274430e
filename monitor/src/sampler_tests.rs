//! Samples of a temporary state directory and `/proc`, and a scripted driver.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use aliquot_core::Mib;
use aliquot_k8s::watch::Index as _;
use aliquot_nvml::{
    DeviceMemory, DriverInventory, GpuFacts, GpuProcess, GpuUtilization, Nvml, NvmlError, Options,
    ProcessUtilization,
};
use aliquot_region::limits::{ContainerLimits, DeviceLimits, page};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::testing::{process, process_sample};

/// As the device plugin of this release writes it.
const WRITTEN: &str = include_str!("../../node-state/src/accepted.golden.json");
const POD: &str = "0123456789abcdef0123456789abcdef";

/// A driver with these GPUs, if it answers, and this process on each, if any.
#[derive(Default)]
struct Scripted {
    gpus: Mutex<Option<Vec<&'static str>>>,
    process: Mutex<Option<u32>>,
    /// It does not say what processes use.
    is_silent: Mutex<bool>,
}

fn no_answer() -> NvmlError {
    let library = "/nonexistent/libnvidia-ml.so.1".into();
    let opened = Nvml::open(Options {
        library,
        ..Options::default()
    });
    opened.err().expect("there is no such library")
}

impl Usage for Scripted {
    fn gpus(&self) -> Result<DriverInventory, NvmlError> {
        let gpu = |(index, uuid): (u32, &&str)| GpuFacts {
            uuid: (*uuid).to_owned(),
            index,
            model: "GPU".to_owned(),
            memory: Mib(10_000),
            ..GpuFacts::default()
        };
        let gpus = self.gpus.lock().clone().ok_or_else(no_answer)?;
        Ok(DriverInventory {
            driver_version: "580".to_owned(),
            gpus: (0..).zip(&gpus).map(gpu).collect(),
            notes: Vec::new(),
        })
    }

    fn processes(&self, _gpu: &str) -> Result<Vec<GpuProcess>, NvmlError> {
        let of = |pid| GpuProcess {
            pid,
            bytes: Some(7),
            instance: None,
        };
        Ok(self.process.lock().map(of).into_iter().collect())
    }

    fn utilization(&self, _gpu: &str) -> Result<GpuUtilization, NvmlError> {
        Ok(GpuUtilization::default())
    }

    fn memory(&self, _uuid: &str) -> Result<DeviceMemory, NvmlError> {
        Ok(DeviceMemory::default())
    }

    fn process_utilization(
        &self,
        _gpu: &str,
        _since: u64,
    ) -> Result<Option<Vec<ProcessUtilization>>, NvmlError> {
        if *self.is_silent.lock() {
            return Err(no_answer());
        }
        Ok(None)
    }
}

struct Node {
    dir: tempfile::TempDir,
    driver: Arc<Scripted>,
    pods: Pods,
}

/// A node with one share of GPU-a, and process 7 of its container.
fn node() -> Node {
    let dir = tempfile::tempdir().expect("tempdir");
    let put = |path: &str, content: &[u8]| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("in a folder")).expect("made");
        fs::write(path, content).expect("written");
    };
    let share = WRITTEN.replace("\"u1\"", &format!("\"{POD}\""));
    put(&format!("state/accepted/{POD}.json"), share.as_bytes());
    let device = DeviceLimits {
        uuid: "GPU-a",
        memory: 100,
        ..DeviceLimits::default()
    };
    let limits = page(ContainerLimits::default(), &[device]).expect("a page");
    put("state/containers/GPU-a-1-2/limits", &limits);
    let id = "a".repeat(64);
    let cgroup = format!("0::/kubepods/pod{POD}/{id}\n");
    put("proc/7/cgroup", cgroup.as_bytes());
    let stat = "7 (x) S 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4711 99 1";
    put("proc/7/stat", stat.as_bytes());
    put("proc/7/status", b"NSpid:\t7\t1\n");
    Node {
        dir,
        driver: Arc::new(Scripted {
            gpus: Mutex::new(Some(vec!["GPU-a"])),
            ..Scripted::default()
        }),
        pods: Pods::default(),
    }
}

impl Node {
    fn sampler(&self) -> Sampler {
        let driver = Arc::clone(&self.driver);
        let processes = Processes::at(&self.dir.path().join("proc"));
        let state = self.dir.path().join("state");
        Sampler::new(driver, &state, processes, self.pods.clone())
    }

    fn pod_is(&self, phase: &str) {
        let pod = json!({
            "metadata": {"uid": POD, "name": "train", "namespace": "default"},
            "spec": {"containers": []},
            "status": {"phase": phase},
        });
        self.pods.apply(serde_json::from_value(pod).expect("a pod"));
    }
}

#[test]
fn marks_gpu_missing_in_inventory_as_blind() {
    let node = node();
    *node.driver.gpus.lock() = Some(Vec::new());
    let mut sampler = node.sampler();
    let (sample, _) = sampler.sample();
    assert_eq!(sample.containers.all.len(), 1);
    assert!(sample.blind.contains("GPU-a"), "it is not in the list");
    *node.driver.gpus.lock() = Some(vec!["GPU-a"]);
    let begun = Instant::now();
    while sampler.sample().0.blind.contains("GPU-a") {
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(30), "it is not read again");
    }
}

#[test]
fn gpu_with_process_that_cannot_be_read_is_blind() {
    let node = node();
    *node.driver.process.lock() = Some(7);
    let mut sampler = node.sampler();
    assert!(sampler.sample().0.blind.is_empty());
    let proc = node.dir.path().join("proc/7");
    fs::remove_file(proc.join("cgroup")).expect("removed");
    assert!(sampler.sample().0.blind.contains("GPU-a"));
    fs::remove_dir_all(proc).expect("removed");
    assert!(sampler.sample().0.blind.is_empty(), "it has ended");
}

#[test]
fn monitor_that_stops_calls_nothing_back() {
    let node = node();
    let mut sampler = node.sampler();
    sampler.sample();
    let path = node.dir.path().join("state/containers/GPU-a-1-2/limits");
    let page = fs::File::options().read(true).write(true).open(path);
    let page = page.expect("limits");
    // Called back, on the first device.
    page.write_all_at(&[1], 64 + 104).expect("written");
    sampler.end_call_backs();
    let mut called_back = [1];
    page.read_exact_at(&mut called_back, 64 + 104)
        .expect("read");
    assert_eq!(called_back, [0]);
}

#[test]
fn keeps_last_inventory_when_driver_fails() {
    let node = node();
    *node.driver.gpus.lock() = None;
    let mut sampler = node.sampler();
    assert!(sampler.sample().0.blind.contains("GPU-a"));
    assert_eq!(sampler.failures["inventory"], 1);
    *node.driver.gpus.lock() = Some(vec!["GPU-a"]);
    assert!(sampler.sample().0.blind.is_empty());
    // A new instance is to be read, and the driver does not answer: what is known stays.
    *node.driver.gpus.lock() = None;
    sampler.gpus.invalidate();
    let (sample, gpus) = sampler.sample();
    assert!(sample.blind.is_empty());
    assert_eq!(gpus.len(), 1);
    assert_eq!(sampler.failures["inventory"], 2);
}

/// However long the rest of a sample takes, reports of a moment ago are not old.
#[test]
fn sample_is_as_old_as_its_counters() {
    let node = node();
    let begun = monotonic();
    let sample = node.sampler().sample().0;
    assert!((begun..=monotonic()).contains(&sample.taken_at));
}

#[test]
fn failed_reading_of_utilization_is_counted_and_no_idleness() {
    let node = node();
    let mut sampler = node.sampler();
    let sample = sampler.sample().0;
    assert!(sample.unsampled.is_empty() && sample.uncorrected.contains("GPU-a"));
    *node.driver.is_silent.lock() = true;
    let sample = sampler.sample().0;
    assert!(sample.uncorrected.is_empty() && !sample.is_utilization_known("GPU-a"));
    assert_eq!(sampler.failures["utilization"], 1);
}

#[test]
fn omits_containers_of_ended_pods_without_processes() {
    let node = node();
    let mut sampler = node.sampler();
    let mut containers = |phase: &str, process: Option<u32>| {
        node.pod_is(phase);
        *node.driver.process.lock() = process;
        // The processes on a GPU are known after one sample.
        sampler.sample();
        let sample = sampler.sample().0;
        assert!(sample.containers.accepted.contains(&PodUid::from(POD)));
        sample.containers.all.len()
    };
    assert_eq!(containers("Pending", None), 1);
    assert_eq!(containers("Running", Some(7)), 1);
    assert_eq!(containers("Succeeded", Some(7)), 1, "its process lives on");
    assert_eq!(containers("Succeeded", None), 0);
    assert_eq!(containers("Failed", None), 0);
    assert_eq!(containers("Failed", Some(7)), 1, "it came back");
}

#[test]
fn omits_init_container_that_has_succeeded() {
    let node = node();
    let mut sampler = node.sampler();
    let mut containers = |state: &Value, restart: Option<&str>, process: Option<u32>| {
        let status = json!({
            "name": "main", "containerID": format!("containerd://{}", "a".repeat(64)),
            "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state,
        });
        let pod = json!({
            "metadata": {"uid": POD, "name": "train", "namespace": "default"},
            "spec": {"containers": [],
                     "initContainers": [{"name": "main", "restartPolicy": restart}]},
            "status": {"phase": "Running", "initContainerStatuses": [status]},
        });
        node.pods.apply(serde_json::from_value(pod).expect("a pod"));
        *node.driver.process.lock() = process;
        // The processes on a GPU are known after one sample.
        sampler.sample();
        sampler.sample().0.containers.all.len()
    };
    let [ended, failed] = [0, 1].map(|code| json!({"terminated": {"exitCode": code}}));
    assert_eq!(containers(&json!({"running": {}}), None, Some(7)), 1);
    assert_eq!(containers(&ended, None, Some(7)), 1, "its process lives on");
    assert_eq!(containers(&ended, None, None), 0);
    assert_eq!(containers(&ended, Some("Always"), None), 1, "a sidecar");
    assert_eq!(containers(&failed, None, None), 1, "it is started again");
}

#[test]
fn treats_process_as_exiting_for_limited_time() {
    let mut exiting = ExitingProcesses::default();
    let mut sample = |pids: &[u32]| {
        let mut all = Vec::new();
        for pid in pids {
            let mut one = process(*pid, Some("u1"), "c");
            one.exiting = *pid != 9;
            // On two GPUs.
            all.extend(["GPU-a", "GPU-b"].map(|gpu| process_sample(gpu, one.clone(), 1)));
        }
        exiting.update(&mut all);
        all.retain(|one| one.process.exiting);
        let pids = all.iter().map(|one| one.process.identity.pid);
        pids.collect::<Vec<_>>()
    };
    for _ in 0..MAX_EXITING {
        assert_eq!(sample(&[7, 9]), [7, 7]);
    }
    assert_eq!(sample(&[7, 8, 9]), [8, 8]);
    assert_eq!(sample(&[8]), [8, 8]);
    assert_eq!(
        sample(&[7]),
        [7, 7],
        "another with that id, or it came back"
    );
}
