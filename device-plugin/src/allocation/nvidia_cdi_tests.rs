//! Where NVIDIA's programs are found, how they are called, and when. Scripts play `nvidia-ctk`.

use std::os::unix::fs::symlink;

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
        pending: mig,
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

fn toolkit() -> Toolkit {
    Toolkit {
        generator: "/usr/bin/nvidia-ctk".into(),
        hook: "/usr/bin/nvidia-cdi-hook".into(),
        version: None,
    }
}

#[test]
fn searches_toolkit_on_path_then_in_operator_folder() {
    let host = tempfile::tempdir().expect("tempdir");
    let host = host.path();
    let check = |expected: &str, hook: &str| {
        let found = search(host, None).expect("found");
        let found = [found.generator, found.hook];
        assert_eq!(found, [expected, hook].map(PathBuf::from));
    };
    let fails = |program: Option<&str>, is_absence: bool, part: &str| {
        let error = search(host, program.map(Path::new)).expect_err(part);
        assert_eq!(error.is_absence(), is_absence, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    fails(
        None,
        true,
        "/usr/bin, /sbin, /bin, /usr/local/nvidia/toolkit",
    );
    fails(Some("/opt/other"), false, "/opt/other");
    let (script, program, hook) = (
        "/usr/local/nvidia/toolkit/nvidia-ctk",
        "/usr/local/nvidia/toolkit/nvidia-ctk.real",
        "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    );
    put(host, script, "a script");
    put(host, program, "a program");
    fails(None, false, "nvidia-ctk.real but no nvidia-cdi-hook");
    put(host, hook, "a program");
    check(program, hook);
    // A link of the host leads below the host's root.
    put(host, "/opt/ctk", "a program");
    fs::create_dir_all(host.join("usr/bin")).expect("made");
    symlink("/opt/ctk", host.join("usr/bin/nvidia-ctk")).expect("linked");
    check("/usr/bin/nvidia-ctk", hook);
    put(host, "/usr/bin/nvidia-cdi-hook", "a program");
    check("/usr/bin/nvidia-ctk", "/usr/bin/nvidia-cdi-hook");
    let before = search(host, None).expect("found");
    put(host, "/opt/ctk", "a newer program");
    assert_ne!(search(host, None).expect("found"), before);
}

#[test]
fn asks_for_names_by_uuid_of_the_host_driver() {
    let check = |root: Option<&str>, has_nodes, gpus: &[GpuFacts], expected: [&str; 4]| {
        let root = root.map(|host| DriverRoot {
            here: "/driver-root".into(),
            host: host.into(),
        });
        let inputs = SpecInputs::new(toolkit(), root.as_ref(), has_nodes, &facts(gpus));
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
            "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook",
        ];
        assert_eq!(inputs.arguments(), all.map(OsString::from));
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

/// A generator on a host without NVIDIA's programs.
fn generator(place: &Path) -> SpecGenerator {
    SpecGenerator {
        folder: place.join("state/nvidia-cdi"),
        host_root: "/".into(),
        driver_root: None,
        program: Some(place.join("nvidia-ctk")),
        bundled: None,
        installed: place.join("state/toolkit"),
        variables: vec![("PATH".into(), PATH.into())],
        inputs: tokio::sync::Mutex::default(),
        problem: Mutex::default(),
    }
}

/// A program that writes this spec, and a line to `runs`.
fn program(place: &Path, kind: &str, library: &str) {
    let hook = put(place, "nvidia-cdi-hook", "");
    let library = put(place, library, "");
    let name = library.file_name().expect("a name").display().to_string();
    let spec = json!({
        "cdiVersion": "0.6.0", "kind": kind, "devices": [],
        "containerEdits": {
            "mounts": [{"hostPath": library, "containerPath": format!("/usr/lib64/{name}")}],
            "hooks": [{"hookName": "createContainer", "path": hook}],
        },
    });
    let runs = place.join("runs");
    let script = format!("#!/bin/sh\necho run >>{}\necho '{spec}'\n", runs.display());
    put(place, "nvidia-ctk", &script);
}

#[tokio::test]
async fn generates_spec_again_when_its_inputs_change() {
    let place = tempfile::tempdir().expect("tempdir");
    let place = place.path();
    let generator = Arc::new(generator(place));
    let stored = place.join("state/nvidia-cdi/nvidia.json");
    let update = async |facts: &DriverInventory, expected: usize| {
        generator.update(facts).await;
        assert!(generator.problem().is_none() && stored.is_file());
        let runs = fs::read_to_string(place.join("runs")).expect("written");
        assert_eq!(runs.lines().count(), expected);
    };
    program(place, "nvidia.com/gpu", "libcuda.so.580.82.07");
    let mut facts = facts(&[gpu("GPU-a", false, false)]);
    update(&facts, 1).await;
    update(&facts, 1).await;
    facts.driver_version = "590.44.01".to_owned();
    update(&facts, 2).await;
    facts.gpus.push(gpu("GPU-b", false, false));
    update(&facts, 3).await;
    facts.gpus[1] = gpu("GPU-b", false, true);
    update(&facts, 4).await;
    // The program is another one.
    program(place, "nvidia.com/gpu", "libcuda.so.590.44.01");
    update(&facts, 5).await;
    // A file that the stored spec names is gone.
    fs::remove_file(place.join("libcuda.so.590.44.01")).expect("removed");
    update(&facts, 6).await;
    facts.gpus.clear();
    update(&facts, 6).await;
}

#[tokio::test]
async fn removes_stored_spec_when_generation_fails() {
    let place = tempfile::tempdir().expect("tempdir");
    let place = place.path();
    let generator = Arc::new(generator(place));
    let stored = place.join("state/nvidia-cdi/nvidia.json");
    let facts = facts(&[gpu("GPU-a", false, false)]);
    let (kind, library) = ("nvidia.com/gpu", "libcuda.so.580.82.07");
    let script = |text: &'static str| move || drop(put(place, "nvidia-ctk", text));
    let failed = "#!/bin/sh\necho 'a warning' >&2\necho 'failed to initialize NVML' >&2\nexit 3\n";
    let cases: [(&dyn Fn(), &str); 5] = [
        (
            &script(failed),
            "nvidia-ctk cdi generate failed (exit status: 3): failed to initialize NVML",
        ),
        (
            &script("#!/bin/sh\necho none\n"),
            "wrote no CDI spec: expected",
        ),
        (&script("no program"), "cannot start"),
        (
            &|| program(place, "vendor.com/gpu", library),
            "of kind vendor.com/gpu, expected one of nvidia.com/gpu",
        ),
        (
            &|| program(place, kind, "libnvidia-ml.so.1"),
            "found no libcuda.so below /",
        ),
    ];
    for (spoil, expected) in cases {
        program(place, kind, library);
        generator.update(&facts).await;
        assert!(generator.problem().is_none() && stored.is_file());
        spoil();
        generator.update(&facts).await;
        let problem = generator.problem().expect("a problem").to_string();
        assert!(problem.contains(expected), "{problem}");
        assert!(!stored.exists(), "{expected}");
    }
}

#[test]
fn installs_programs_of_the_image_where_the_host_has_none() {
    let place = tempfile::tempdir().expect("tempdir");
    let image = place.path().join("image");
    let without = SpecGenerator {
        host_root: place.path().join("host"),
        program: None,
        bundled: Some(image.clone()),
        ..generator(place.path())
    };
    let problem = || {
        let inputs = without.inputs(&facts(&[gpu("GPU-a", false, false)]));
        inputs.expect_err("no programs").to_string()
    };
    // That it cannot be read is no sign that the host has no program.
    let unreadable = "host: No such file or directory (os error 2)";
    assert!(problem().ends_with(unreadable), "{}", problem());
    fs::create_dir(&without.host_root).expect("made");
    assert!(problem().contains("image/nvidia-ctk"), "{}", problem());
    let generator = generator(place.path());
    for content in ["a program", "another program"] {
        for name in [GENERATOR, HOOK] {
            put(&image, name, content);
        }
        let toolkit = generator.install(&image).expect("installed");
        for file in [toolkit.generator, toolkit.hook] {
            assert!(file.starts_with(&generator.installed), "{}", file.display());
            assert_eq!(fs::read_to_string(&file).expect("installed"), content);
            let mode = fs::metadata(&file).expect("installed").permissions().mode();
            assert_eq!(mode & 0o777, 0o755);
        }
    }
}
