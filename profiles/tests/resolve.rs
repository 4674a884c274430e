//! Resolves profiles to modes of GPUs or to errors, and selects profiles of nodes.

use std::collections::BTreeMap;

use aliquot_profiles::gpu_selector::{Glob, Pci};
use aliquot_profiles::mode::Scaling;
use aliquot_profiles::profile_selection::{BUILT_IN, LABEL, NVIDIA_LABEL};
use aliquot_profiles::{
    Config, Defaults, PhysicalGpu, ProfileSource, read, resolve, select_profile,
};

const A100: &str = "NVIDIA A100-SXM4-40GB";
const A30: &str = "NVIDIA A30";
const V100: &str = "Tesla V100-SXM2-16GB";
const P100: &str = "Tesla P100-PCIE-16GB";

fn gpu(index: u32, product: &str) -> PhysicalGpu {
    let (model, capability) = match product {
        A100 => (0x20B0_10DE, (8, 0)),
        A30 => (0x20B7_10DE, (8, 0)),
        V100 => (0x1DB1_10DE, (7, 0)),
        _ => (0x15F8_10DE, (6, 0)),
    };
    PhysicalGpu {
        uuid: format!("GPU-0000000{index}-0000-0000-0000-00000000000{index}").into(),
        index,
        product: product.to_owned(),
        pci: Pci::parse(&format!("00000000:6{index}:00.0")),
        model: Some(Pci::Model(model)),
        capability: Some(capability),
        mig: capability.0 >= 8,
    }
}

fn defaults() -> Defaults {
    Defaults {
        split: 10,
        memory_scaling: Scaling::ONE,
    }
}

fn lab(profile: &str) -> Config {
    let text = format!("apiVersion: aliquot.dev/v1alpha1\nprofiles: {{lab: {profile}}}\n");
    read(&text).expect("a good configuration")
}

/// Each GPU's rule and mode; or the errors.
fn resolved(profile: &str, gpus: &[PhysicalGpu]) -> Vec<String> {
    let config = lab(profile);
    match resolve("lab", &config.profiles["lab"], gpus, &defaults()) {
        Ok(plans) => {
            let plan = |plan: &aliquot_profiles::GpuPlan| {
                let mode = serde_json::to_string(&plan.mode).expect("JSON");
                format!("{} {mode}", plan.from)
            };
            plans.iter().map(plan).collect()
        }
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

/// Checks a table: a profile in one line, and in the indented lines after it what each of four GPUs
/// gets, or the errors.
fn check(table: &str) {
    let gpus = [gpu(0, A100), gpu(1, A100), gpu(2, A30), gpu(3, V100)];
    let mut lines = table.trim().lines().peekable();
    while let Some(profile) = lines.next() {
        let mut expected = Vec::new();
        while let Some(line) = lines.next_if(|line| line.starts_with("  ")) {
            expected.push(line.trim_start());
        }
        assert_eq!(resolved(profile, &gpus), expected, "\n{profile}");
    }
}

#[test]
fn gives_each_gpu_the_mode_of_its_one_rule() {
    check(
        r#"
{rest: vgpu}
  rest {"mode":"vgpu","split":10,"memoryScaling":1}
  rest {"mode":"vgpu","split":10,"memoryScaling":1}
  rest {"mode":"vgpu","split":10,"memoryScaling":1}
  rest {"mode":"vgpu","split":10,"memoryScaling":1}
{gpus: [{select: {index: 0}, mode: exclusive}, {select: {uuid: GPU-00000001-0000-0000-0000-000000000001}, mode: vgpu, split: 4, memoryScaling: 1.5}, {select: {pci: ['0000:62:00.0']}, mode: mig, dynamic: true}, {select: {product: 'Tesla V*'}, mode: timeslice, replicas: 3}]}
  gpus[0] {"mode":"exclusive"}
  gpus[1] {"mode":"vgpu","split":4,"memoryScaling":1.5}
  gpus[2] {"mode":"mig","dynamic":true,"strategy":"mixed"}
  gpus[3] {"mode":"timeslice","replicas":3,"strict":false}
{gpus: [{select: {pci: '0x20B010DE', index: 1}, mode: exclusive}, {select: {product: '*H100*'}, optional: true, mode: mig, dynamic: true}], rest: vgpu}
  rest {"mode":"vgpu","split":10,"memoryScaling":1}
  gpus[0] {"mode":"exclusive"}
  rest {"mode":"vgpu","split":10,"memoryScaling":1}
  rest {"mode":"vgpu","split":10,"memoryScaling":1}
"#,
    );
}

#[test]
fn ts_9_selects_exactly_by_key_and_rejects_no_match() {
    let uuid = |n: u32| format!("uuid: GPU-0000000{n}-0000-0000-0000-00000000000{n}");
    for (select, hit, none) in [
        ("index: 2", 2, "index: 9"),
        (&uuid(1), 1, &uuid(9)),
        ("pci: '0000:63:00.0'", 3, "pci: '0000:69:00.0'"),
        ("product: '*A30*'", 2, "product: '*H100*'"),
    ] {
        let gpus = [gpu(0, A100), gpu(1, A100), gpu(2, A30), gpu(3, V100)];
        let found = |select: &str| {
            let entry = format!("{{select: {{{select}}}, mode: exclusive}}");
            resolved(&format!("{{gpus: [{entry}], rest: vgpu}}"), &gpus)
        };
        for (index, plan) in found(select).iter().enumerate() {
            let from = if index == hit { "gpus[0] " } else { "rest " };
            assert!(plan.starts_with(from), "{select}: {plan}");
        }
        let errors = found(none);
        assert_eq!(errors.len(), 1, "{none}");
        assert!(errors[0].contains("selects no GPU"), "{errors:?}");
    }
}

#[test]
fn reports_all_selection_errors_at_once() {
    check(
        r#"
{gpus: [{select: {index: [0, 1, 7]}, mode: exclusive}, {select: {product: ['*A100*', '*H100*']}, mode: vgpu}, {select: {pci: '0000:99:00.0'}, mode: vgpu}]}
  profiles.lab.gpus[0].select.index[2]: 7 selects no GPU; expected: 0, 1, 2, 3
  profiles.lab.gpus[1].select.product[1]: "*H100*" selects no GPU; expected: NVIDIA A100-SXM4-40GB, NVIDIA A30, Tesla V100-SXM2-16GB
  profiles.lab.gpus[2].select.pci[0]: "0000:99:00.0" selects no GPU; expected: 0000:60:00.0, 0000:61:00.0, 0000:62:00.0, 0000:63:00.0
  profiles.lab: assigns GPU 0 (NVIDIA A100-SXM4-40GB, GPU-00000000-0000-0000-0000-000000000000) to gpus[0] and gpus[1]; expected: each GPU in one entry; rest applies to all others
  profiles.lab: assigns GPU 1 (NVIDIA A100-SXM4-40GB, GPU-00000001-0000-0000-0000-000000000001) to gpus[0] and gpus[1]; expected: each GPU in one entry; rest applies to all others
  profiles.lab: has no rule for GPU 2 (NVIDIA A30, GPU-00000002-0000-0000-0000-000000000002); expected: an entry of gpus that selects it, or rest
  profiles.lab: has no rule for GPU 3 (Tesla V100-SXM2-16GB, GPU-00000003-0000-0000-0000-000000000003); expected: an entry of gpus that selects it, or rest
{gpus: [{select: {product: '*A30', index: 0}, mode: exclusive}], rest: vgpu}
  profiles.lab.gpus[0].select.index[0]: 0 selects no GPU that the other keys select; expected: keys that select a common GPU, or optional: true
  profiles.lab.gpus[0].select.product[0]: "*A30" selects no GPU that the other keys select; expected: keys that select a common GPU, or optional: true
{gpus: [{select: {all: true}, mode: mig, dynamic: true}]}
  profiles.lab.gpus[0].mode: "mig" is not supported by GPU 3 (Tesla V100-SXM2-16GB, GPU-00000003-0000-0000-0000-000000000003); expected: vgpu, exclusive, timeslice, mps, unmanaged
"#,
    );
}

#[test]
fn mig_4_reports_differing_layouts_under_strategy_single() {
    let gpus = [gpu(0, A100), gpu(1, A100), gpu(2, A30)];
    let check = |second: &str, error: Option<&str>| {
        let first = "{select: {index: 0}, mode: mig, strategy: single, layout: [{profile: 2g.10gb, count: 3}]}";
        let second = format!("{{select: {{index: 1}}, mode: mig, {second}}}");
        let found = resolved(&format!("{{gpus: [{first}, {second}], rest: vgpu}}"), &gpus);
        match error {
            None => assert_eq!(found.len(), 3, "{found:?}"),
            Some(error) => assert_eq!(found, [error]),
        }
    };
    check(
        "strategy: single, layout: [{profile: 2g.10gb, count: 3}]",
        None,
    );
    let message = "profiles.lab.gpus[1].layout: partitions GPU 1 (NVIDIA A100-SXM4-40GB, GPU-00000001-0000-0000-0000-000000000001) into 7 x 1g.5gb, but the others into 3 x 2g.10gb; expected: one layout for all GPUs with strategy single, or strategy mixed";
    let odd = "strategy: single, layout: [{profile: 1g.5gb, count: 7}]";
    check(odd, Some(message));
    // GPUs with another strategy may have any layout.
    check("layout: [{profile: 7g.40gb}]", None);
}

#[test]
fn reports_layout_that_gpu_does_not_support() {
    check(
        r#"
{gpus: [{select: {index: 0}, mode: mig, layout: [{profile: 4g.20gb}, {profile: 3g.20gb}]}], rest: vgpu}
  gpus[0] {"mode":"mig","layout":[{"profile":"4g.20gb","count":1},{"profile":"3g.20gb","count":1}],"strategy":"mixed"}
  rest {"mode":"vgpu","split":10,"memoryScaling":1}
  rest {"mode":"vgpu","split":10,"memoryScaling":1}
  rest {"mode":"vgpu","split":10,"memoryScaling":1}
{gpus: [{select: {index: 0}, mode: mig, layout: [{profile: 3g.20gb, count: 2}, {profile: 1g.5gb}]}], rest: vgpu}
  profiles.lab.gpus[0].layout: does not fit on GPU 0 (NVIDIA A100-SXM4-40GB, GPU-00000000-0000-0000-0000-000000000000); expected: instances that fit on the GPU together
{gpus: [{select: {index: 2}, mode: mig, layout: [{profile: 1g.5gb}]}], rest: vgpu}
  profiles.lab.gpus[0].layout[0].profile: "1g.5gb" is not a MIG profile of GPU 2 (NVIDIA A30, GPU-00000002-0000-0000-0000-000000000002); expected: 1g.6gb, 1g.6gb+me, 2g.12gb, 4g.24gb, 2g.12gb+me
{gpus: [{select: {index: 2}, mode: mig, dynamic: true, allow: [1g.6gb, 3g.20gb]}], rest: vgpu}
  profiles.lab.gpus[0].allow[1]: "3g.20gb" is not a MIG profile of GPU 2 (NVIDIA A30, GPU-00000002-0000-0000-0000-000000000002); expected: 1g.6gb, 1g.6gb+me, 2g.12gb, 4g.24gb, 2g.12gb+me
"#,
    );
}

#[test]
fn limits_mps_clients_on_old_gpus() {
    let profile = "{rest: {mode: mps, replicas: 17}}";
    assert_eq!(resolved(profile, &[gpu(0, V100)]).len(), 1);
    let message = "profiles.lab.rest.replicas: 17 is too many for GPU 0 (Tesla P100-PCIE-16GB, GPU-00000000-0000-0000-0000-000000000000); expected: 1 to 16 before compute capability 7.0";
    assert_eq!(resolved(profile, &[gpu(0, P100)]), [message]);
}

#[test]
fn refuses_what_the_agent_cannot_set_up() {
    check(
        r"
{gpus: [{select: {index: 0}, mode: mig, layout: [{profile: 1g.5gb, on: {mode: mps, replicas: 7}}]}], rest: vgpu}
  profiles.lab.gpus[0].layout[0].on.replicas: 7 is too many for an instance of GPU 0 (NVIDIA A100-SXM4-40GB, GPU-00000000-0000-0000-0000-000000000000); expected: 1 to 6
",
    );
}

const POOLS: &str = "apiVersion: aliquot.dev/v1alpha1
default: other
profiles:
  lab: {nodeSelector: {pool: lab}, rest: exclusive}
  big: {nodeSelector: {size: big}, rest: exclusive}
  other: {rest: vgpu}
";

fn chosen(
    config: Option<&str>,
    labels: &[(&str, &str)],
) -> Result<(String, ProfileSource), String> {
    let config = config.map(|text| read(text).expect("a good configuration"));
    let labels = labels
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let labels: BTreeMap<String, String> = labels.collect();
    match select_profile(config.as_ref(), &labels) {
        Ok(chosen) => Ok((chosen.name.to_owned(), chosen.source)),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn selects_profile_by_label_then_selector_then_default() {
    let none = || Ok((BUILT_IN.to_owned(), ProfileSource::BuiltIn));
    let table = [
        (&[][..], Ok(("other".to_owned(), ProfileSource::Default))),
        (&[("pool", "lab")], Ok(("lab".to_owned(), ProfileSource::NodeSelector))),
        (&[("pool", "lab"), (NVIDIA_LABEL, "big")], Ok(("big".to_owned(), ProfileSource::Label(NVIDIA_LABEL)))),
        (&[(LABEL, "lab"), (NVIDIA_LABEL, "big")], Ok(("lab".to_owned(), ProfileSource::Label(LABEL)))),
        (&[(LABEL, ""), ("pool", "lab")], Ok(("lab".to_owned(), ProfileSource::NodeSelector))),
        (
            &[(LABEL, "lap")],
            Err("metadata.labels[\"aliquot.dev/profile\"]: \"lap\" is not a profile; expected: big, lab, other".to_owned()),
        ),
        (
            &[("pool", "lab"), ("size", "big")],
            Err("metadata.labels: match 2 profiles: big, lab; expected: one profile; the label aliquot.dev/profile takes precedence".to_owned()),
        ),
    ];
    for (labels, expected) in table {
        assert_eq!(chosen(Some(POOLS), labels), expected, "{labels:?}");
        assert_eq!(chosen(None, labels), none(), "{labels:?}");
    }
    let without_default = POOLS.replace("default: other\n", "");
    assert_eq!(chosen(Some(&without_default), &[]), none());
}

#[test]
fn uses_vgpu_on_all_gpus_without_configuration() {
    let chosen = select_profile(None, &BTreeMap::new()).expect("built in");
    let gpus = [gpu(0, A100), gpu(1, V100)];
    let plans = resolve(chosen.name, &chosen.profile, &gpus, &defaults()).expect("plans");
    let effective = Config::new(chosen.name, chosen.profile.with_defaults(&defaults()));
    let text = effective.to_yaml().expect("YAML");
    let read_back = read(&text).expect("its own text");
    assert_eq!(read_back, effective, "\n{text}");
    let again = &read_back.profiles[BUILT_IN];
    assert_eq!(resolve(BUILT_IN, again, &gpus, &defaults()), Ok(plans));
    assert!(text.contains("split: 10"), "{text}");
    assert!(resolve(chosen.name, &chosen.profile, &[], &defaults()).is_ok());
}

#[test]
fn globs_match_whole_names_only() {
    let table = [
        ("*A100*", A100, true),
        ("*A10*", A100, true),
        ("NVIDIA A10?-*", A100, true),
        ("NVIDIA A10", A100, false),
        ("A100*", A100, false),
        ("*", "", true),
        ("?", "", false),
        ("*40GB", A100, true),
        ("**4?GB", A100, true),
    ];
    for (glob, text, expected) in table {
        let found = Glob(glob.to_owned()).matches(text);
        assert_eq!(found, expected, "{glob} {text}");
    }
}

#[test]
fn mig_15_rejects_reservation_that_does_not_fit_on_gpu() {
    let dynamic = |reserve: &str| {
        let entry =
            format!("{{select: {{index: 0}}, mode: mig, dynamic: true, reserve: [{reserve}]}}");
        format!("{{gpus: [{entry}], rest: vgpu}}")
    };
    let gpus = [gpu(0, A100), gpu(1, A100)];
    let good = dynamic("{profile: 3g.20gb, count: 2, namespaces: [a]}");
    let config = lab(&good);
    let plans = resolve("lab", &config.profiles["lab"], &gpus, &defaults()).expect("good");
    let reserved = serde_json::to_string(&plans[0].reserve).expect("JSON");
    let expected = r#"[{"profile":"3g.20gb","count":2,"namespaces":["a"]}]"#;
    assert_eq!(reserved, expected);
    assert!(plans[1].reserve.is_empty());
    for reserve in [
        "{profile: 3g.20gb, count: 3, namespaces: [a]}",
        "{profile: 1g.6gb, namespaces: [a]}",
    ] {
        let message = "profiles.lab.gpus[0].reserve: does not fit on GPU 0 (NVIDIA A100-SXM4-40GB, GPU-00000000-0000-0000-0000-000000000000); expected: profiles of the GPU that fit on it together";
        assert_eq!(resolved(&dynamic(reserve), &gpus), [message]);
    }
}
