//! Invalid configurations, each with its exact error message.

use aliquot_profiles::read;

fn check(broken: &str, message: &str) {
    let found = match read(broken) {
        Ok(config) => panic!("accepted: {broken}\nas {config:?}"),
        Err(errors) => errors.to_string(),
    };
    assert_eq!(found, message, "\n{broken}");
}

/// Checks a table: the profile `lab` in one line, its errors in the indented lines after it.
fn check_profiles(table: &str) {
    let mut lines = table.trim().lines().peekable();
    while let Some(profile) = lines.next() {
        let mut errors = Vec::new();
        while let Some(error) = lines.next_if(|line| line.starts_with("  ")) {
            errors.push(error.trim_start());
        }
        let broken = format!("apiVersion: aliquot.dev/v1alpha1\nprofiles: {{lab: {profile}}}\n");
        check(&broken, &errors.join("\n"));
    }
}

#[test]
fn reports_each_invalid_file() {
    let table = [
        (String::new(), "(file): null is empty; expected: the keys apiVersion, default, profiles"),
        ("profiles: {lab: {rest: vgpu}}".to_owned(), "apiVersion: is missing; expected: aliquot.dev/v1alpha1"),
        ("apiVersion: v1\nprofiles: {lab: {rest: vgpu}}".to_owned(), r#"apiVersion: "v1" has the wrong format; expected: aliquot.dev/v1alpha1"#),
        ("apiVersion: aliquot.dev/v1alpha1".to_owned(), "profiles: is missing; expected: a mapping"),
        ("apiVersion: aliquot.dev/v1alpha1\nprofiles: {lab: {rest: vgpu}}\ndefualt: lab".to_owned(), r"defualt: unknown key; expected: apiVersion, default, profiles"),
        ("apiVersion: aliquot.dev/v1alpha1\nprofiles: {lab: {rest: vgpu}}\ndefault: lap".to_owned(), r#"default: "lap" is not a profile; expected: lab"#),
        ("apiVersion: aliquot.dev/v1alpha1\nprofiles: []".to_owned(), "profiles: [] is a list; expected: a mapping"),
        ("apiVersion: aliquot.dev/v1alpha1\nprofiles: {-lab: {rest: vgpu}}".to_owned(), r#"profiles.-lab: "-lab" is not a valid key; expected: 1 to 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit"#),
        ("apiVersion: aliquot.dev/v1alpha1\nprofiles:\n  lab: {rest: vgpu}\n  lab: {rest: mps}".to_owned(), "line 4, column 3: cannot be parsed (duplicate mapping key: lab); expected: one YAML document with unique keys"),
        ("apiVersion: aliquot.dev/v1alpha1\nprofiles: {lab: {rest: vgpu}".to_owned(), "line 2, column 11: cannot be parsed (unclosed bracket '{'); expected: one YAML document with unique keys"),
        ("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}".to_owned(), "(file): is a configuration of NVIDIA's device plugin; expected: apiVersion aliquot.dev/v1alpha1; convert it with: kubectl-aliquot config convert FILE"),
    ];
    for (broken, message) in &table {
        check(broken, message);
    }
}

#[test]
fn reports_each_invalid_profile() {
    check_profiles(
        r#"
{}
  profiles.lab: has neither gpus nor rest; expected: gpus, rest, or both
{gpu: [{select: {all: true}, mode: vgpu}]}
  profiles.lab.gpu: unknown key; expected: nodeSelector, gpus, rest, transition
{nodeSelector: {pool: 7}, rest: vgpu}
  profiles.lab.nodeSelector.pool: 7 is a number (quote it to make it text); expected: a label value, quoted if it looks like a number or a boolean
{gpus: {select: {all: true}, mode: vgpu}}
  profiles.lab.gpus: {"mode":"vgpu","select":{"all":true}} is a mapping; expected: a list of: the key mode (vgpu, exclusive, timeslice, mps, mig, unmanaged) and that mode's keys
{gpus: [{select: {all: true}, mode: vgpu}], rest: exclusive}
  profiles.lab.rest: has no effect: gpus[0] selects all GPUs; expected: either rest or select.all
{rest: shared}
  profiles.lab.rest.mode: "shared" is not a mode; expected: vgpu, exclusive, timeslice, mps, mig, unmanaged
{rest: timeslice}
  profiles.lab.rest.replicas: is missing; expected: an integer from 2 to 1000
{rest: vgpu, transition: {policy: force}}
  profiles.lab.transition.policy: "force" is not a valid value; expected: wait, evict
{rest: vgpu, transition: {timeout: 30}}
  profiles.lab.transition.timeout: 30 is a number (quote it to make it text); expected: a duration such as 30s, 10m or 2h, at most 168h
{rest: vgpu, transition: {timeout: 30min}}
  profiles.lab.transition.timeout: "30min" has the wrong format; expected: a duration such as 30s, 10m or 2h, at most 168h
{gpus: [{mode: vgpu}]}
  profiles.lab.gpus[0].select: is missing; expected: the keys all, index, uuid, pci, product
{gpus: [{select: {}, mode: vgpu}]}
  profiles.lab.gpus[0].select: selects no GPU; expected: all: true, or one or more of index, uuid, pci, product
{gpus: [{select: {index: [0, 1]}, mode: vgpu}, {select: {index: 1}, mode: exclusive}]}
  profiles.lab.gpus[1].select.index: 1 is also selected by gpus[0]; expected: each GPU in one entry; rest applies to all others
{gpus: [{select: {all: true}, mode: vgpu}, {select: {product: '*A30*'}, mode: exclusive}]}
  profiles.lab.gpus[1].select.product: "*A30*" is also selected by gpus[0]; expected: each GPU in one entry; rest applies to all others
"#,
    );
}

#[test]
fn reports_each_invalid_selector() {
    check_profiles(
        r#"
{gpus: [{select: {all: true, index: 0}, mode: exclusive}]}
  profiles.lab.gpus[0].select: combines all with other keys; expected: all: true alone, or other keys
{gpus: [{select: {index: -1}, mode: exclusive}]}
  profiles.lab.gpus[0].select.index: -1 is not a non-negative integer; expected: an integer from 0 to 1023
{gpus: [{select: {index: [0, '1']}, mode: exclusive}]}
  profiles.lab.gpus[0].select.index[1]: "1" is a string; expected: an integer from 0 to 1023
{gpus: [{select: {index: [2, 2]}, mode: exclusive}]}
  profiles.lab.gpus[0].select.index[1]: 2 is a duplicate; expected: each entry once
{gpus: [{select: {uuid: MIG-11111111-2222-3333-4444-555555555555}, mode: exclusive}]}
  profiles.lab.gpus[0].select.uuid: "MIG-11111111-2222-3333-4444-555555555555" has the wrong format; expected: a GPU's uuid, GPU- and 8-4-4-4-12 hexadecimal digits (nvidia-smi -L prints it)
{gpus: [{select: {pci: 65:00}, mode: exclusive}]}
  profiles.lab.gpus[0].select.pci: "65:00" has the wrong format; expected: a quoted PCI address such as 0000:65:00.0, or a PCI device id such as 0x20B010DE
{gpus: [{select: {pci: 0x20B010DE}, mode: exclusive}]}
  profiles.lab.gpus[0].select.pci: 548409566 is a number (quote it to make it text); expected: a quoted PCI address such as 0000:65:00.0, or a PCI device id such as 0x20B010DE
{gpus: [{select: {product: []}, mode: exclusive}]}
  profiles.lab.gpus[0].select.product: [] is an empty list; expected: a product as the driver names it, with * for any text and ? for any character, such as *A100*, or a list of these
{gpus: [{select: {model: A30}, mode: exclusive}]}
  profiles.lab.gpus[0].select.model: unknown key; expected: all, index, uuid, pci, product
"#,
    );
}

#[test]
fn reports_each_invalid_mode() {
    check_profiles(
        r#"
{gpus: [{select: {index: 0}, modus: vgpu}]}
  profiles.lab.gpus[0].mode: is missing; expected: vgpu, exclusive, timeslice, mps, mig, unmanaged
{gpus: [{select: {index: 0}, mode: timeslicing}]}
  profiles.lab.gpus[0].mode: "timeslicing" is not a mode; expected: vgpu, exclusive, timeslice, mps, mig, unmanaged
{gpus: [{select: {index: 0}, mode: vgpu, split: 0}]}
  profiles.lab.gpus[0].split: 0 is too small; expected: an integer from 1 to 1000
{gpus: [{select: {index: 0}, mode: vgpu, memoryScaling: 20}]}
  profiles.lab.gpus[0].memoryScaling: 20 is not a valid scaling; expected: 0.1 to 16, with at most three decimals
{gpus: [{select: {index: 0}, mode: timeslice, replicas: 1}]}
  profiles.lab.gpus[0].replicas: 1 is too small; expected: an integer from 2 to 1000
{gpus: [{select: {index: 0}, mode: timeslice, replicas: 4, rename: gpu.shared}]}
  profiles.lab.gpus[0].rename: "gpu.shared" has the wrong format; expected: a resource with its domain, at most 63 characters after the '/', such as nvidia.com/gpu.shared, but no nvidia.com/mig-...
{gpus: [{select: {index: 0}, mode: mig, layout: [{profile: 1g.5gb, on: {mode: timeslice, replicas: 2, rename: nvidia.com/mig-1g.5gb.shared}}]}]}
  profiles.lab.gpus[0].layout[0].on.rename: "nvidia.com/mig-1g.5gb.shared" has the wrong format; expected: a resource with its domain, at most 63 characters after the '/', such as nvidia.com/gpu.shared, but no nvidia.com/mig-...
{gpus: [{select: {index: 0}, mode: timeslice, replicas: 4, strict: 'yes'}]}
  profiles.lab.gpus[0].strict: "yes" is a string; expected: true or false
{gpus: [{select: {index: 0}, mode: mps, replicas: 4, memory: 4Gi}]}
  profiles.lab.gpus[0].memory: "4Gi" is not a valid value; expected: even, full
{gpus: [{select: {index: 0}, mode: mig}]}
  profiles.lab.gpus[0]: has neither a layout nor dynamic: true; expected: one of the two
{gpus: [{select: {index: 0}, mode: mig, dynamic: true, layout: [{profile: 1g.5gb}]}]}
  profiles.lab.gpus[0]: has both a layout and dynamic: true; expected: one of the two
{gpus: [{select: {index: 0}, mode: mig, layout: [{profile: 1g}]}]}
  profiles.lab.gpus[0].layout[0].profile: "1g" has the wrong format; expected: a MIG profile such as 1g.10gb, 1g.10gb+me or 3g.40gb
{gpus: [{select: {index: 0}, mode: mig, layout: [{profile: 3g.20gb, count: 3}]}]}
  profiles.lab.gpus[0].layout: 9 compute slices exceed those of any GPU; expected: at most 7 in total
{gpus: [{select: {index: 0}, mode: mig, layout: [{profile: 1g.5gb, on: mps}]}]}
  profiles.lab.gpus[0].layout[0].on.replicas: is missing; expected: an integer from 1 to 48
{gpus: [{select: {index: 0}, mode: mig, layout: [{profile: 1g.5gb, on: {mode: exclusive}}]}]}
  profiles.lab.gpus[0].layout[0].on.mode: "exclusive" is not a mode; expected: vgpu, timeslice, mps
{gpus: [{select: {index: 0}, mode: mig, layout: [{profile: 1g.5gb}], allow: [1g.5gb]}]}
  profiles.lab.gpus[0].allow: ["1g.5gb"] applies to dynamic MIG only; expected: allow with dynamic: true
{gpus: [{select: {index: 0}, mode: mig, strategy: single, layout: [{profile: 1g.5gb}, {profile: 2g.10gb}]}]}
  profiles.lab.gpus[0].strategy: "single" requires identical instances; expected: a layout of one profile, or strategy mixed
{gpus: [{select: {index: 0}, mode: mig, dynamic: true, strategy: single}]}
  profiles.lab.gpus[0].strategy: "single" requires identical instances; expected: a layout of one profile, or strategy mixed
{gpus: [{select: {index: 0}, mode: exclusive, split: 4, rename: 5}]}
  profiles.lab.gpus[0].split: unknown key; expected: mode, select, optional, reserve, rename
  profiles.lab.gpus[0].rename: 5 is a number (quote it to make it text); expected: a resource with its domain, at most 63 characters after the '/', such as nvidia.com/gpu.shared, but no nvidia.com/mig-...
"#,
    );
}

#[test]
fn mig_15_reports_each_invalid_reservation() {
    check_profiles(
        r#"
{gpus: [{select: {index: 0}, mode: exclusive, reserve: []}]}
  profiles.lab.gpus[0].reserve: [] has too few entries; expected: at least 1 of: the keys profile, count, namespaces
{gpus: [{select: {index: 0}, mode: exclusive, reserve: [{namespaces: [Team_A]}]}]}
  profiles.lab.gpus[0].reserve[0].namespaces[0]: "Team_A" has the wrong format; expected: a namespace: 1 to 63 lower-case letters, digits and '-', not starting or ending with '-'
{gpus: [{select: {index: 0}, mode: exclusive, reserve: [{count: 2, namespaces: [a]}]}]}
  profiles.lab.gpus[0].reserve[0].count: 2 requires a profile; expected: count together with profile; without a profile the whole GPU is reserved
{gpus: [{select: {index: 0}, mode: exclusive, reserve: [{profile: 1g.5gb, namespaces: [a]}]}]}
  profiles.lab.gpus[0].reserve[0].profile: "1g.5gb" requires mode mig; expected: no profile: without MIG the whole GPU is reserved
{gpus: [{select: {index: 0}, mode: mig, layout: [{profile: 1g.5gb, count: 2}], reserve: [{namespaces: [a]}, {profile: 1g.5gb, namespaces: [b]}]}]}
  profiles.lab.gpus[0].reserve[0]: reserves the whole GPU, but another entry reserves part of it; expected: one of the two
{gpus: [{select: {index: 0}, mode: mig, layout: [{profile: 1g.5gb, count: 2}], reserve: [{profile: 1g.5gb, count: 2, namespaces: [a]}, {profile: 1g.5gb, namespaces: [b]}]}]}
  profiles.lab.gpus[0].reserve[0].profile: "1g.5gb" is reserved 3 times, but the GPU has 2; expected: at most as many as the layout has, or dynamic allows
{gpus: [{select: {index: 0}, mode: mig, dynamic: true, allow: [1g.5gb], reserve: [{profile: 3g.20gb, namespaces: [a]}]}]}
  profiles.lab.gpus[0].reserve[0].profile: "3g.20gb" is reserved 1 times, but the GPU has 0; expected: at most as many as the layout has, or dynamic allows
"#,
    );
}
