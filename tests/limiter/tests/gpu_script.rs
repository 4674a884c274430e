//! Runs on the simulated GPU the scripts of `tests/gpu` that measure a real one, packed as for a
//! machine with such a GPU: the driver lies below /usr/local/nvidia, where the loader does not
//! search. The figures are simulated, and what kernels would write is absent.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place};
use aliquot_limiter_tests::scene::{FIRST, machine};
use aliquot_limiter_tests::{limiter, lines};
use parking_lot::Mutex;
use serde_json::Value;

/// Starts a command with a root of its own, in which `/` can be written, and with the driver of the
/// folder `$2` in /usr/local/nvidia/lib64; `$1` is the new root.
const ENTER: &str = r#"
set -e
root=$1 driver=$2; shift 2
mount -t tmpfs tmpfs "$root"
bind() {
    for entry in "$1"/*; do
        if [ -L "$entry" ]; then cp -P "$entry" "$2/${entry##*/}"
        elif [ -d "$entry" ]; then mkdir -p "$2/${entry##*/}"; mount --rbind "$entry" "$2/${entry##*/}"
        fi
    done
}
bind "" "$root"
mount -t tmpfs tmpfs "$root/usr/local"
bind /usr/local "$root/usr/local"
mkdir -p "$root/usr/local/nvidia/lib64" "$root/.old"
mount --bind "$driver" "$root/usr/local/nvidia/lib64"
cd "$root"
pivot_root . .old
umount -l /.old
"$@" || status=$?
[ ! -e /.aliquot ] && [ ! -L /.aliquot ] || { echo "/.aliquot is left" >&2; exit 99; }
exit "${status:-0}"
"#;
/// One script at a time, because they measure time.
static EXCLUSIVE: Mutex<()> = Mutex::new(());
/// Parts that need a library or a tool which most machines lack.
const OPTIONAL: [&str; 9] = [
    "torch",
    "triton",
    "jax",
    "cupy",
    "torch_graph",
    "torch_expandable",
    "torch_malloc_async",
    "torch_compile",
    "tools",
];
/// Seconds in which a command must end where the limiter is not injected.
const AT_ONCE: f64 = 10.0;

/// The folder with `pack.sh`.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu")
}

fn program_folder() -> &'static Path {
    let program = Path::new(env!("CARGO_BIN_EXE_container-directory"));
    program.parent().expect("a folder")
}

/// What a script of the folder that `pack.sh` makes did: its exit status and what it printed, and
/// its result.
struct Measured {
    output: Output,
    result: Value,
}

/// Runs a script for the part `scale` of its time, with this library as the limiter.
fn run(machine: &SimulatedMachine, script: &str, scale: &str, library: &Path) -> Measured {
    let _exclusive = EXCLUSIVE.lock();
    let temp = tempfile::tempdir().expect("a folder");
    let at = |name: &str| temp.path().join(name);
    for folder in ["root", "driver", "out"] {
        fs::create_dir(at(folder)).expect("a folder");
    }
    let cuda = place::cuda_library_path().expect("the simulated driver");
    fs::copy(cuda, at("driver/libcuda.so.1")).expect("a copy");
    let nvml = place::library_path().expect("the simulated NVML");
    fs::copy(nvml, at("driver/libnvidia-ml.so.1")).expect("a copy");
    let packed = Command::new(scripts().join("pack.sh"))
        .arg(at("packed"))
        .arg(library)
        .arg(program_folder())
        .output();
    succeeds(&packed.expect("pack.sh runs"));
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", ENTER])
        .arg("enter")
        .args([at("root"), at("driver"), at("packed").join(script)])
        .arg(at("out"))
        .arg(scale)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env(STATE_VARIABLE, machine.state())
        .output();
    let output = output.expect("it runs");
    let result = at("out").join(Path::new(script).with_extension("json"));
    let text = fs::read_to_string(result).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    Measured {
        output,
        result: serde_json::from_str(&text).expect("JSON"),
    }
}

/// The parts of the result of a whole script, each of which was measured or, if it is optional,
/// skipped with a reason, and was printed as it was measured.
fn measure(machine: &SimulatedMachine, script: &str, scale: &str) -> BTreeMap<String, Value> {
    let measured = run(machine, script, scale, &limiter().expect("libvgpu.so"));
    let parts: BTreeMap<String, Value> =
        serde_json::from_value(measured.result["parts"].clone()).expect("parts");
    for (name, part) in &parts {
        assert!(part.get("error").is_none(), "{name}: {part:#}");
        let skipped = part.get("skipped").is_some();
        assert!(
            !skipped || OPTIONAL.contains(&name.as_str()) || script == "headline.sh",
            "{name}: {part:#}"
        );
    }
    succeeds(&measured.output);
    for line in lines(&measured.output) {
        let fact: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}"));
        let part = fact["part"].as_str().expect("a part");
        let fields = fact.as_object().expect("an object");
        let field = fields.keys().find(|name| *name != "part").expect("a field");
        assert!(
            field == "state" || parts[part].get(field).is_some(),
            "{line}"
        );
    }
    parts
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

/// A number of a part.
#[track_caller]
fn number(parts: &BTreeMap<String, Value>, part: &str, pointer: &str) -> f64 {
    let found = parts[part].pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{part}{pointer}: {:#}", parts[part]))
}

/// The memory of a context, as a script finds it.
#[track_caller]
fn is_mib(found: f64, expected: u32) {
    assert!(
        (found - f64::from(expected)).abs() < 2.0,
        "{found} MiB; expected: {expected}"
    );
}

#[test]
fn facts_script_measures_harsh_simulated_gpu() {
    let (_temp, machine) = machine();
    machine
        .set(FIRST, &[("profile", "harsh")])
        .expect("a profile");
    let parts = measure(&machine, "facts.sh", "0.03");
    let at = |part: &str, pointer: &str| number(&parts, part, pointer);
    is_mib(at("contexts", "/default/context/device_mib"), 300);
    is_mib(at("contexts", "/default/launch/device_mib"), 500);
    assert!(at("local_memory", "/step_1/launch_takes_mib") > 100.0);
    is_mib(at("whole", "/could_not_get_mib"), 300);
    let others = parts["addresses"]["not_from_dlsym"].as_array();
    assert!(
        others.is_some_and(|names| !names.is_empty()),
        "{:#}",
        parts["addresses"]
    );
    let exported = parts["exports"]
        .pointer("/libcuda/names")
        .and_then(Value::as_array);
    assert!(
        exported.is_some_and(|names| names.len() > 500),
        "{exported:?}"
    );
    let program = &parts["driver_program"];
    assert_eq!(program["lists_all_processes"], true, "{program:#}");
    let samples = program["monitor_samples"].as_array().expect("samples");
    let busy = |one: &Value| one["busy"].as_array().is_some_and(|all| all.len() == 3);
    assert!(samples.iter().any(busy), "{program:#}");
    let median = "/spin_of_10000_us/in_a_row/event_us/median";
    let event = at("events_alone", median);
    assert!((10_000.0..20_000.0).contains(&event), "{event}");
    let absent = parts["events_alone"].pointer("/spin_of_10000_us/in_a_row/timer_us");
    assert_eq!(
        absent,
        Some(&Value::from("not measured: the kernel wrote nothing"))
    );
    assert!(at("utilisation", "/two_busy/new/own_samples") >= 1.0);
    for who in ["1_gib", "large", "kernel_runs", "forked_child"] {
        assert!(at("killed", &format!("/{who}/held_mib")) >= 1024.0);
        is_mib(at("killed", &format!("/{who}/left_mib")), 0);
    }
}

#[test]
fn limited_script_runs_whole_on_simulated_gpu() {
    let (_temp, machine) = machine();
    let parts = measure(&machine, "limited.sh", "0.1");
    let at = |part: &str, pointer: &str| number(&parts, part, pointer);
    is_mib(at("prepare", "/context_mib"), 480);
    for kind in ["plain", "pool", "physical", "managed"] {
        let device = at("memory", &format!("/{kind}/most_mib"));
        assert!(
            (2900.0..=3000.0).contains(&device),
            "{kind}: {:#}",
            parts["memory"]
        );
    }
    assert_eq!(parts["memory"]["exact"]["whole"], 0);
    assert_eq!(parts["memory"]["exact"]["more"], 2);
    let got = at("share_alone", "/30_percent_of_1000_us/tenants/0/got");
    assert!((20.0..40.0).contains(&got), "{got} %; expected: about 30");
    let polls = at("share_beside_tenant", "/30_and_60_of_1000_us/polls/made");
    assert!(polls >= 1.0);
    let together = parts["processes"]["filled_mib"].as_array();
    let together = together.expect("three figures").iter();
    let together: f64 = together.filter_map(Value::as_f64).sum();
    assert!(together < 3000.0, "{:#}", parts["processes"]);
    let ratio = at("share_of_varying", "/percent_of_bare");
    assert!(
        (20.0..40.0).contains(&ratio),
        "{ratio} %; expected: about 30"
    );
}

#[test]
fn headline_script_skips_parts_without_libraries() {
    let (_temp, machine) = machine();
    let parts = measure(&machine, "headline.sh", "0.1");
    is_mib(number(&parts, "prepare", "/context_mib"), 480);
    assert!(parts["alone"].get("skipped").is_some(), "{parts:#?}");
}

#[test]
fn limited_script_ends_at_once_where_limiter_is_not_injected() {
    let (temp, machine) = machine();
    let source = temp.path().join("none.c");
    fs::write(&source, "").expect("a file");
    let library = temp.path().join("libvgpu.so");
    let compiled = Command::new("cc")
        .args(["-shared", "-o"])
        .args([&library, &source])
        .output();
    succeeds(&compiled.expect("cc runs"));
    let measured = run(&machine, "limited.sh", "1", &library);
    assert_eq!(
        measured.output.status.code(),
        Some(3),
        "{:?}",
        measured.output
    );
    let words = String::from_utf8_lossy(&measured.output.stderr);
    for part in [
        "the limiter does not limit",
        "sees 81286.0 MiB",
        "expected: total_mib 3000",
    ] {
        assert!(words.contains(part), "{words}");
    }
    let parts = measured.result["parts"].as_object().expect("parts");
    assert_eq!(parts.keys().collect::<Vec<_>>(), ["prepare"]);
    let seconds = measured.result["seconds"].as_f64().expect("a number");
    assert!(seconds < AT_ONCE, "{seconds} s");
}
