//! How NVIDIA's programs are called, and when. Scripts play `nvidia-ctk`.

use aliquot_nvml::{GpuFacts, MigMode};
use serde_json::json;

use super::*;
use crate::testing;

fn put(root: &Path, file: &str, content: &str) -> PathBuf {
    let file = root.join(file.trim_start_matches('/'));
    fs::create_dir_all(file.parent().expect("in a folder")).expect("made");
    let new = file.with_extension("new");
    fs::write(&new, content).expect("written");
    fs::set_permissions(&new, Permissions::from_mode(0o755)).expect("executable");
    fs::rename(new, &file).expect("renamed");
    file
}

/// A GPU with an instance, which may be complete.
fn gpu(uuid: &str, mig: bool, complete: bool) -> GpuFacts {
    let mut gpu = testing::facts(&[uuid]).gpus.remove(0);
    gpu.mig = MigMode {
        capable: true,
        enabled: mig,
    };
    gpu.layout.instances = vec![testing::reported_instance(0, "MIG-a")];
    if !complete {
        gpu.layout.instances[0].devices.clear();
    }
    gpu
}

fn facts(gpus: &[GpuFacts]) -> DriverInventory {
    DriverInventory {
        driver_version: "580.82.07".to_owned(),
        gpus: gpus.to_vec(),
        notes: Vec::new(),
    }
}

#[test]
fn asks_for_names_by_uuid_of_the_host_driver() {
    let check = |root: Option<&str>, has_nodes, gpus: &[GpuFacts], expected: [&str; 4]| {
        let root = root.map(|host| DriverRoot {
            here: "/driver-root".into(),
            host: host.into(),
        });
        let inputs = SpecInputs::new(root.as_ref(), has_nodes, &facts(gpus));
        let [mode, vendor, driver_root, dev_root] = expected;
        let all = [
            "cdi",
            "generate",
            "--format=json",
            "--class=gpu",
            "--device-name-strategy=uuid",
            mode,
            vendor,
            driver_root,
            dev_root,
            "--nvidia-cdi-hook-path=/s/toolkit/nvidia-cdi-hook",
        ];
        let hook = Path::new("/s/toolkit/nvidia-cdi-hook");
        assert_eq!(inputs.arguments(hook), all.map(OsString::from));
    };
    let (mode, vendor) = ("--mode=nvml", "--vendor=nvidia.com");
    let on_host = [mode, vendor, "--driver-root=/", "--dev-root=/"];
    check(None, false, &[gpu("GPU-a", false, false)], on_host);
    let container = "--driver-root=/run/nvidia/driver";
    let root = Some("/run/nvidia/driver");
    let expected = [mode, vendor, container, "--dev-root=/"];
    check(root, false, &[gpu("GPU-a", true, true)], expected);
    // There is no device to name.
    let (mode, vendor) = ("--mode=management", "--vendor=management.nvidia.com");
    let expected = [mode, vendor, container, "--dev-root=/run/nvidia/driver"];
    check(root, true, &[gpu("GPU-a", true, false)], expected);
}

#[test]
fn runs_program_with_the_host_root() {
    let check = |root: &str, expected: &[&str]| {
        let arguments = vec![OsString::from("cdi")];
        let program = Path::new("/usr/bin/nvidia-ctk");
        let (command, arguments) = command_line(Path::new(root), program, arguments);
        let line = [command.into_os_string()].into_iter().chain(arguments);
        let expected: Vec<OsString> = expected.iter().map(OsString::from).collect();
        assert_eq!(line.collect::<Vec<_>>(), expected);
    };
    check("/", &["/usr/bin/nvidia-ctk", "cdi"]);
    let own = ["/proc/self/exe", "chroot", "/proc/1/root"];
    check(
        "/proc/1/root",
        &[&own[..], &["/usr/bin/nvidia-ctk", "cdi"]].concat(),
    );
}

#[test]
fn refuses_spec_with_missing_host_path() {
    let host = tempfile::tempdir().expect("tempdir");
    let library = "/lib/libcuda.so.580";
    put(host.path(), library, "");
    for (mounted, hook, expected) in [
        (library, library, "0.6.0"),
        (library, "/bin/hook", "it names /bin/hook, which does not"),
        ("/lib/old", library, "it names /lib/old, which does not"),
    ] {
        let spec = json!({
            "cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [],
            "containerEdits": {
                "mounts": [{"hostPath": mounted, "containerPath": library}],
                "hooks": [{"hookName": "createContainer", "path": hook}],
            },
        });
        let found = checked(spec.to_string().as_bytes(), host.path());
        let found = found.map_or_else(|error| error.to_string(), |spec| spec.version);
        assert!(found.starts_with(expected), "{found}");
    }
}

fn generator(place: &Path) -> SpecGenerator {
    SpecGenerator {
        file: place.join("state/nvidia-cdi/nvidia.json"),
        host_root: "/".into(),
        driver_root: None,
        programs: place.join("image"),
        installed: place.join("state/toolkit"),
        variables: vec![("PATH".into(), PATH.into())],
        inputs: tokio::sync::Mutex::default(),
        problem: Mutex::default(),
    }
}

/// The image's programs; `nvidia-ctk` writes a spec with this library, and a line to `runs`.
fn programs(place: &Path, library: &str) {
    let hook = put(place, "image/nvidia-cdi-hook", "a program");
    let library = put(place, library, "");
    let name = library.file_name().expect("a name").display().to_string();
    let spec = json!({
        "cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [],
        "containerEdits": {
            "mounts": [{"hostPath": library, "containerPath": format!("/usr/lib64/{name}")}],
            "hooks": [{"hookName": "createContainer", "path": hook}],
        },
    });
    let runs = place.join("runs");
    let script = format!("#!/bin/sh\necho run >>{}\necho '{spec}'\n", runs.display());
    put(place, "image/nvidia-ctk", &script);
}

#[tokio::test]
async fn generates_spec_again_when_its_inputs_change() {
    let place = tempfile::tempdir().expect("tempdir");
    let place = place.path();
    let generator = Arc::new(generator(place));
    let update = async |facts: &DriverInventory, expected: usize| {
        generator.update(facts).await;
        assert_eq!(generator.missing(), None);
        let runs = fs::read_to_string(place.join("runs")).expect("written");
        assert_eq!(runs.lines().count(), expected);
    };
    programs(place, "libcuda.so.580.82.07");
    let mut facts = facts(&[gpu("GPU-a", false, false)]);
    update(&facts, 1).await;
    update(&facts, 1).await;
    facts.driver_version = "590.44.01".to_owned();
    update(&facts, 2).await;
    facts.gpus.push(gpu("GPU-b", false, false));
    update(&facts, 3).await;
    facts.gpus[1] = gpu("GPU-b", false, true);
    update(&facts, 4).await;
    // The stored spec is gone.
    fs::remove_file(&generator.file).expect("removed");
    update(&facts, 5).await;
    facts.gpus.clear();
    update(&facts, 5).await;
}

/// `nvidia-ctk` names no GPU then, and fails.
#[tokio::test]
async fn gpu_that_does_not_answer_takes_the_driver_from_no_container() {
    let place = tempfile::tempdir().expect("tempdir");
    let place = place.path();
    let generator = Arc::new(generator(place));
    let facts = facts(&[gpu("GPU-a", false, false)]);
    let update = async |expected: usize| {
        generator.update(&facts).await;
        assert_eq!(generator.missing(), None);
        let runs = fs::read_to_string(place.join("runs")).expect("written");
        assert_eq!(runs.lines().count(), expected);
    };
    programs(place, "libcuda.so.580.82.07");
    let answered = refuse_names(place);
    update(1).await;
    // Again, until the GPUs have their names.
    update(2).await;
    put(place, "image/nvidia-ctk", &answered);
    update(3).await;
    update(3).await;
}

/// Makes `nvidia-ctk` fail where it should name GPUs. Returns the program of before.
fn refuse_names(place: &Path) -> String {
    let program = place.join("image/nvidia-ctk");
    let answered = fs::read_to_string(program).expect("written");
    let shell = "#!/bin/sh\n";
    let refuses = "case \"$*\" in *--mode=nvml*) echo 'version mismatch' >&2; exit 1;; esac\n";
    let unanswered = answered.replacen(shell, &format!("{shell}{refuses}"), 1);
    put(place, "image/nvidia-ctk", &unanswered);
    answered
}

/// As between an update of the driver's package and the node's restart.
#[tokio::test]
async fn files_of_a_driver_that_is_not_loaded_reach_no_container() {
    let place = tempfile::tempdir().expect("tempdir");
    let place = place.path();
    let generator = Arc::new(generator(place));
    let loaded = facts(&[gpu("GPU-a", false, false)]);
    programs(place, "libcuda.so.580.82.07");
    generator.update(&loaded).await;
    assert_eq!(generator.missing(), None);
    fs::remove_file(place.join("libcuda.so.580.82.07")).expect("replaced");
    programs(place, "libcuda.so.590.44.01");
    refuse_names(place);
    generator.update(&loaded).await;
    let problem = generator.missing().expect("a problem");
    assert!(problem.contains("version mismatch"), "{problem}");
}

#[tokio::test]
async fn removes_stored_spec_when_generation_fails() {
    let place = tempfile::tempdir().expect("tempdir");
    let place = place.path();
    let generator = Arc::new(generator(place));
    let before = facts(&[gpu("GPU-a", false, false)]);
    let mut after = before.clone();
    after.driver_version = "590.44.01".to_owned();
    let script = |text: &'static str| move || drop(put(place, "image/nvidia-ctk", text));
    let failed = "#!/bin/sh\necho 'a warning' >&2\necho 'failed to initialize NVML' >&2\nexit 3\n";
    let cases: [(&dyn Fn(), &str); 4] = [
        (
            &script(failed),
            "nvidia-ctk cdi generate failed (exit status: 3): failed to initialize NVML",
        ),
        (
            &script("#!/bin/sh\necho none\n"),
            "of the driver below / is not used: it is no CDI spec: expected",
        ),
        (&script("no program"), "cannot start"),
        (
            &|| programs(place, "libnvidia-ml.so.1"),
            "it has no libcuda.so",
        ),
    ];
    for (spoil, expected) in cases {
        programs(place, "libcuda.so.580.82.07");
        generator.update(&before).await;
        assert_eq!(generator.missing(), None);
        spoil();
        generator.update(&after).await;
        let problem = generator.missing().expect("a problem");
        assert!(problem.contains(expected), "{problem}");
        assert!(!generator.file.exists(), "{expected}");
    }
}

#[test]
fn installs_programs_of_the_image_on_the_host() {
    let place = tempfile::tempdir().expect("tempdir");
    let generator = generator(place.path());
    let error = generator.install().expect_err("no programs").to_string();
    assert!(error.contains("image/nvidia-ctk"), "{error}");
    for content in ["a program", "another program"] {
        for name in [GENERATOR, HOOK] {
            put(&generator.programs, name, content);
        }
        generator.install().expect("installed");
        for name in [GENERATOR, HOOK] {
            let file = generator.installed.join(name);
            assert_eq!(fs::read_to_string(&file).expect("installed"), content);
            let mode = fs::metadata(&file).expect("installed").permissions().mode();
            assert_eq!(mode & 0o777, 0o755);
        }
    }
}
