//! `kubectl-aliquot config` as a process: what it prints, where, and its exit code.

use std::io::Write as _;
use std::process::{Command, Stdio};

use aliquot_cli::config::effective;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

/// Exit code, standard output, standard error.
fn run(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kubectl-aliquot"))
        .arg("config")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut pipe = child.stdin.take().expect("a pipe");
    pipe.write_all(input.as_bytes()).expect("written");
    drop(pipe);
    let output = child.wait_with_output().expect("ended");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

const BROKEN: &str = "apiVersion: aliquot.dev/v1alpha1
default: lap
profiles:
  lab:
    gpus:
    - {select: {index: 0}, mode: vgpu, replicas: 4}
    - {select: {index: 1}, mode: mps, replicas: 100}
";

#[test]
fn validate_prints_each_error_and_exits_1() {
    let (code, out, err) = run(&["validate", "-"], BROKEN);
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(
        lines,
        [
            "profiles.lab.gpus[0].replicas: unknown key; expected: mode, select, optional, reserve, split, memoryScaling, graphics, video",
            "profiles.lab.gpus[1].replicas: 100 is too large; expected: an integer from 1 to 48",
        ]
    );
    assert_eq!((code, out.as_str()), (Some(1), ""));
}

#[test]
fn validate_prints_profiles_and_exits_0() {
    let valid = "{apiVersion: aliquot.dev/v1alpha1, profiles: {lab: {rest: exclusive}}}";
    let (code, out, err) = run(&["validate", "-"], valid);
    assert_eq!(out, "valid: lab; default: vgpu on all GPUs\n");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let (code, _, err) = run(&["validate", "/nowhere.yaml"], "");
    assert_eq!(code, Some(1));
    assert!(err.contains("cannot read /nowhere.yaml"), "{err}");
}

#[test]
fn reader_that_has_read_enough_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kubectl-aliquot"))
        .args(["config", "validate", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    drop(child.stdout.take());
    let mut pipe = child.stdin.take().expect("a pipe");
    let valid = b"{apiVersion: aliquot.dev/v1alpha1, profiles: {lab: {rest: exclusive}}}";
    pipe.write_all(valid).expect("written");
    drop(pipe);
    let output = child.wait_with_output().expect("ended");
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn converts_to_valid_configuration() {
    let theirs =
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}";
    let (code, ours, err) = run(&["convert", "--name", "x", "-"], theirs);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let (code, out, err) = run(&["validate", "-"], &ours);
    assert_eq!(out, "valid: x; default: x\n", "{err}");
    assert_eq!(code, Some(0));
    // Without conversion, the error names the command that converts.
    let (code, _, err) = run(&["validate", "-"], theirs);
    assert_eq!(code, Some(1));
    assert!(err.contains("config convert FILE"), "{err}");
}

#[test]
fn shows_effective_profile_as_valid_configuration() {
    let inventory = r#"{"v":1,"reads":[1],"gpus":[{"uuid":"GPU-11111111-2222-3333-4444-555555555555","index":0,"model":"NVIDIA A30","memory":24576,"scaled":24576,"cores":100,"replicas":10,"mode":"vgpu","resource":"nvidia.com/gpu","health":"ok"}]}"#;
    let node = |annotations| -> Node {
        let node = json!({"metadata": {"name": "n1", "annotations": annotations}});
        serde_json::from_value(node).expect("a node")
    };
    let shown = effective(&node(json!({"aliquot.dev/inventory": inventory})), "n1").expect("YAML");
    assert!(shown.contains("split: 10"), "{shown}");
    let (code, out, err) = run(&["validate", "-"], &shown);
    assert_eq!(out, "valid: n1; default: n1\n", "{err}");
    assert_eq!(code, Some(0));
    let error = effective(&node(json!({})), "n1").expect_err("nothing to show");
    assert!(
        error.to_string().contains("node n1 has no annotation"),
        "{error}"
    );
}

#[test]
fn mps_15_shows_what_each_client_gets_and_refuses_more() {
    let config = |replicas: u32| {
        format!(
            "{{apiVersion: aliquot.dev/v1alpha1, profiles: {{lab: {{gpus: [\
             {{select: {{index: 0}}, mode: mps, replicas: {replicas}}}, \
             {{select: {{index: 1}}, mode: mig, layout: [{{profile: 3g.20gb, on: {{mode: mps, replicas: 3, memory: full}}}}]}}], \
             rest: {{mode: mps, replicas: 48, threads: full}}}}}}}}"
        )
    };
    let (code, out, err) = run(&["validate", "-"], &config(4));
    let expected = "\
valid: lab; default: vgpu on all GPUs
profiles.lab.gpus[0]: each of 4 MPS clients gets 1/4 of the memory and 25 % of the SMs; there may be 48, 16 before compute capability 7.0
profiles.lab.gpus[1].layout[0]: each of 3 MPS clients gets all memory and 33 % of the SMs; there may be the part of 48 that 3g.20gb is
profiles.lab.rest: each of 48 MPS clients gets 1/48 of the memory and all SMs; there may be 48, 16 before compute capability 7.0
";
    assert_eq!((code, &*out), (Some(0), expected), "{err}");
    let (code, out, err) = run(&["validate", "-"], &config(49));
    assert_eq!((code, &*out), (Some(1), ""));
    let refusal =
        "profiles.lab.gpus[0].replicas: 49 is too large; expected: an integer from 1 to 48\n";
    assert_eq!(err, refusal);
}
