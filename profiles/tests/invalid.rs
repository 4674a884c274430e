//! Invalid configurations, each with its exact error message.

use aliquot_profiles::read;

/// A configuration with one profile, `lab`.
fn lab(profile: &str) -> String {
    let profile = profile.replace('\n', "\n    ");
    format!("apiVersion: aliquot.dev/v1alpha1\nprofiles:\n  lab:\n    {profile}\n")
}

/// A profile with one entry that selects GPU 0.
fn first(mode: &str) -> String {
    lab(&format!("gpus: [{{select: {{index: 0}}, {mode}}}]"))
}

/// A profile with one entry and this selector.
fn select(select: &str) -> String {
    lab(&format!(
        "gpus: [{{select: {{{select}}}, mode: exclusive}}]"
    ))
}

fn check(broken: &str, message: &str) {
    let found = match read(broken) {
        Ok(config) => panic!("accepted: {broken}\nas {config:?}"),
        Err(errors) => errors.to_string(),
    };
    assert_eq!(found, message, "\n{broken}");
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
        ("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}".to_owned(), "(file): is a configuration in the format of nvidia; expected: apiVersion aliquot.dev/v1alpha1; convert it with: kubectl-aliquot config convert --from nvidia FILE"),
        ("version: v1\nmig-configs: {all-disabled: [{devices: all, mig-enabled: false}]}".to_owned(), "(file): is a configuration in the format of mig-parted; expected: apiVersion aliquot.dev/v1alpha1; convert it with: kubectl-aliquot config convert --from mig-parted FILE"),
    ];
    for (broken, message) in &table {
        check(broken, message);
    }
}

#[test]
fn reports_each_invalid_profile() {
    let table = [
        (
            lab("{}"),
            "profiles.lab: has neither gpus nor rest; expected: gpus, rest, or both",
        ),
        (
            lab("gpu: [{select: {all: true}, mode: vgpu}]"),
            r"profiles.lab.gpu: unknown key; expected: nodeSelector, gpus, rest, transition",
        ),
        (
            lab("nodeSelector: {pool: 7}\nrest: vgpu"),
            "profiles.lab.nodeSelector.pool: 7 is a number (quote it to make it text); expected: a label value, quoted if it looks like a number or a boolean",
        ),
        (
            lab("gpus: {select: {all: true}, mode: vgpu}"),
            r#"profiles.lab.gpus: {"mode":"vgpu","select":{"all":true}} is a mapping; expected: a list of: the key mode (vgpu, exclusive, timeslice, mps, mig, unmanaged) and that mode's keys"#,
        ),
        (
            lab("gpus: [{select: {all: true}, mode: vgpu}]\nrest: exclusive"),
            "profiles.lab.rest: has no effect: gpus[0] selects all GPUs; expected: either rest or select.all",
        ),
        (
            lab("rest: shared"),
            r#"profiles.lab.rest.mode: "shared" is not a mode; expected: vgpu, exclusive, timeslice, mps, mig, unmanaged"#,
        ),
        (
            lab("rest: timeslice"),
            "profiles.lab.rest.replicas: is missing; expected: an integer from 2 to 1000",
        ),
        (
            lab("rest: vgpu\ntransition: {policy: force}"),
            r#"profiles.lab.transition.policy: "force" is not a valid value; expected: wait, evict"#,
        ),
        (
            lab("rest: vgpu\ntransition: {timeout: 30}"),
            "profiles.lab.transition.timeout: 30 is a number (quote it to make it text); expected: a duration such as 30s, 10m or 2h, at most 168h",
        ),
        (
            lab("rest: vgpu\ntransition: {timeout: 30min}"),
            r#"profiles.lab.transition.timeout: "30min" has the wrong format; expected: a duration such as 30s, 10m or 2h, at most 168h"#,
        ),
        (
            lab("gpus: [{mode: vgpu}]"),
            "profiles.lab.gpus[0].select: is missing; expected: the keys all, index, uuid, pci, product",
        ),
        (
            lab("gpus: [{select: {}, mode: vgpu}]"),
            "profiles.lab.gpus[0].select: selects no GPU; expected: all: true, or one or more of index, uuid, pci, product",
        ),
        (
            lab(
                "gpus:\n- {select: {index: [0, 1]}, mode: vgpu}\n- {select: {index: 1}, mode: exclusive}",
            ),
            "profiles.lab.gpus[1].select.index: 1 is also selected by gpus[0]; expected: each GPU in one entry; rest applies to all others",
        ),
        (
            lab(
                "gpus:\n- {select: {all: true}, mode: vgpu}\n- {select: {product: '*A30*'}, mode: exclusive}",
            ),
            r#"profiles.lab.gpus[1].select.product: "*A30*" is also selected by gpus[0]; expected: each GPU in one entry; rest applies to all others"#,
        ),
    ];
    for (broken, message) in &table {
        check(broken, message);
    }
}

#[test]
fn reports_each_invalid_selector() {
    let table = [
        (
            select("all: true, index: 0"),
            "profiles.lab.gpus[0].select: combines all with other keys; expected: all: true alone, or other keys",
        ),
        (
            select("index: -1"),
            "profiles.lab.gpus[0].select.index: -1 is not a non-negative integer; expected: an integer from 0 to 1023",
        ),
        (
            select("index: [0, '1']"),
            r#"profiles.lab.gpus[0].select.index[1]: "1" is a string; expected: an integer from 0 to 1023"#,
        ),
        (
            select("index: [2, 2]"),
            "profiles.lab.gpus[0].select.index[1]: 2 is a duplicate; expected: each entry once",
        ),
        (
            select("uuid: MIG-11111111-2222-3333-4444-555555555555"),
            r#"profiles.lab.gpus[0].select.uuid: "MIG-11111111-2222-3333-4444-555555555555" has the wrong format; expected: a GPU's uuid, GPU- and 8-4-4-4-12 hexadecimal digits (nvidia-smi -L prints it)"#,
        ),
        (
            select("uuid: GPU-1111"),
            r#"profiles.lab.gpus[0].select.uuid: "GPU-1111" has the wrong format; expected: a GPU's uuid, GPU- and 8-4-4-4-12 hexadecimal digits (nvidia-smi -L prints it)"#,
        ),
        (
            select("pci: 65:00"),
            r#"profiles.lab.gpus[0].select.pci: "65:00" has the wrong format; expected: a quoted PCI address such as 0000:65:00.0, or a PCI device id such as 0x20B010DE"#,
        ),
        (
            select("pci: 0x20B010DE"),
            "profiles.lab.gpus[0].select.pci: 548409566 is a number (quote it to make it text); expected: a quoted PCI address such as 0000:65:00.0, or a PCI device id such as 0x20B010DE",
        ),
        (
            select("product: []"),
            "profiles.lab.gpus[0].select.product: [] is an empty list; expected: a product as the driver names it, with * for any text and ? for any character, such as *A100*, or a list of these",
        ),
        (
            select("model: A30"),
            r"profiles.lab.gpus[0].select.model: unknown key; expected: all, index, uuid, pci, product",
        ),
    ];
    for (broken, message) in &table {
        check(broken, message);
    }
}

#[test]
fn reports_each_invalid_mode() {
    let table = [
        (
            first("modus: vgpu"),
            "profiles.lab.gpus[0].mode: is missing; expected: vgpu, exclusive, timeslice, mps, mig, unmanaged",
        ),
        (
            first("mode: timeslicing"),
            r#"profiles.lab.gpus[0].mode: "timeslicing" is not a mode; expected: vgpu, exclusive, timeslice, mps, mig, unmanaged"#,
        ),
        (
            first("mode: vgpu, split: 0"),
            "profiles.lab.gpus[0].split: 0 is too small; expected: an integer from 1 to 1000",
        ),
        (
            first("mode: vgpu, memoryScaling: 20"),
            "profiles.lab.gpus[0].memoryScaling: 20 is not a valid scaling; expected: 0.1 to 16, with at most three decimals",
        ),
        (
            first("mode: vgpu, replicas: 4"),
            "profiles.lab.gpus[0].replicas: unknown key; expected: mode, select, optional, reserve, split, memoryScaling, graphics, video",
        ),
        (
            first("mode: timeslice, replicas: 1"),
            "profiles.lab.gpus[0].replicas: 1 is too small; expected: an integer from 2 to 1000",
        ),
        (
            first("mode: timeslice, replicas: ten"),
            r#"profiles.lab.gpus[0].replicas: "ten" is a string; expected: an integer from 2 to 1000"#,
        ),
        (
            first("mode: timeslice, replicas: 4, rename: gpu.shared"),
            r#"profiles.lab.gpus[0].rename: "gpu.shared" has the wrong format; expected: a resource with its domain, at most 63 characters after the '/', such as nvidia.com/gpu.shared"#,
        ),
        (
            first("mode: timeslice, replicas: 4, sliceLength: 2ms"),
            r#"profiles.lab.gpus[0].sliceLength: "2ms" is not a valid value; expected: default, short, medium, long"#,
        ),
        (
            first("mode: timeslice, replicas: 4, strict: 'yes'"),
            r#"profiles.lab.gpus[0].strict: "yes" is a string; expected: true or false"#,
        ),
        (
            first("mode: mps, replicas: 49"),
            "profiles.lab.gpus[0].replicas: 49 is too large; expected: an integer from 1 to 48",
        ),
        (
            first("mode: mps, replicas: 2.5"),
            "profiles.lab.gpus[0].replicas: 2.5 is not a non-negative integer; expected: an integer from 1 to 48",
        ),
        (
            first("mode: mps, replicas: 4, memory: 4Gi"),
            r#"profiles.lab.gpus[0].memory: "4Gi" is not a valid value; expected: even, full"#,
        ),
        (
            first("mode: mig"),
            "profiles.lab.gpus[0]: has neither a layout nor dynamic: true; expected: one of the two",
        ),
        (
            first("mode: mig, dynamic: true, layout: [{profile: 1g.5gb}]"),
            "profiles.lab.gpus[0]: has both a layout and dynamic: true; expected: one of the two",
        ),
        (
            first("mode: mig, layout: [{profile: 1g}]"),
            r#"profiles.lab.gpus[0].layout[0].profile: "1g" has the wrong format; expected: a MIG profile such as 1g.10gb, 1g.10gb+me or 3g.40gb"#,
        ),
        (
            first("mode: mig, layout: [{profile: 3g.20gb, count: 3}]"),
            "profiles.lab.gpus[0].layout: 9 compute slices exceed those of any GPU; expected: at most 7 in total",
        ),
        (
            first("mode: mig, layout: [{profile: 1g.5gb, on: mps}]"),
            "profiles.lab.gpus[0].layout[0].on.replicas: is missing; expected: an integer from 1 to 48",
        ),
        (
            first("mode: mig, layout: [{profile: 1g.5gb, on: {mode: exclusive}}]"),
            r#"profiles.lab.gpus[0].layout[0].on.mode: "exclusive" is not a mode; expected: vgpu, timeslice, mps"#,
        ),
        (
            first("mode: mig, layout: [{profile: 1g.5gb}], allow: [1g.5gb]"),
            r#"profiles.lab.gpus[0].allow: ["1g.5gb"] applies to dynamic MIG only; expected: allow with dynamic: true"#,
        ),
        (
            first("mode: mig, strategy: single, layout: [{profile: 1g.5gb}, {profile: 2g.10gb}]"),
            r#"profiles.lab.gpus[0].strategy: "single" requires identical instances; expected: a layout of one profile, or strategy mixed"#,
        ),
        (
            first("mode: mig, dynamic: true, strategy: single"),
            r#"profiles.lab.gpus[0].strategy: "single" requires identical instances; expected: a layout of one profile, or strategy mixed"#,
        ),
        (
            first("mode: exclusive, split: 4, rename: 5"),
            "profiles.lab.gpus[0].split: unknown key; expected: mode, select, optional, reserve, rename\nprofiles.lab.gpus[0].rename: 5 is a number (quote it to make it text); expected: a resource with its domain, at most 63 characters after the '/', such as nvidia.com/gpu.shared",
        ),
    ];
    for (broken, message) in &table {
        check(broken, message);
    }
}

#[test]
fn mig_15_reports_each_invalid_reservation() {
    let reserve = |rest: &str| first(rest);
    let layout = "mode: mig, layout: [{profile: 1g.5gb, count: 2}]";
    let at = "profiles.lab.gpus[0].reserve";
    let table = [
        (
            reserve("mode: exclusive, reserve: []"),
            format!(
                "{at}: [] has too few entries; expected: at least 1 of: the keys profile, count, namespaces"
            ),
        ),
        (
            reserve("mode: exclusive, reserve: [{namespaces: [Team_A]}]"),
            format!(
                "{at}[0].namespaces[0]: \"Team_A\" has the wrong format; expected: a namespace: 1 to 63 lower-case letters, digits and '-', not starting or ending with '-'"
            ),
        ),
        (
            reserve("mode: exclusive, reserve: [{count: 2, namespaces: [a]}]"),
            format!(
                "{at}[0].count: 2 requires a profile; expected: count together with profile; without a profile the whole GPU is reserved"
            ),
        ),
        (
            reserve("mode: exclusive, reserve: [{profile: 1g.5gb, namespaces: [a]}]"),
            format!(
                "{at}[0].profile: \"1g.5gb\" requires mode mig; expected: no profile: without MIG the whole GPU is reserved"
            ),
        ),
        (
            reserve(&format!(
                "{layout}, reserve: [{{namespaces: [a]}}, {{profile: 1g.5gb, namespaces: [b]}}]"
            )),
            format!(
                "{at}[0]: reserves the whole GPU, but another entry reserves part of it; expected: one of the two"
            ),
        ),
        (
            reserve(&format!(
                "{layout}, reserve: [{{profile: 1g.5gb, count: 2, namespaces: [a]}}, {{profile: 1g.5gb, namespaces: [b]}}]"
            )),
            format!(
                "{at}[0].profile: \"1g.5gb\" is reserved 3 times, but the GPU has 2; expected: at most as many as the layout has, or dynamic allows"
            ),
        ),
        (
            reserve(
                "mode: mig, dynamic: true, allow: [1g.5gb], reserve: [{profile: 3g.20gb, namespaces: [a]}]",
            ),
            format!(
                "{at}[0].profile: \"3g.20gb\" is reserved 1 times, but the GPU has 0; expected: at most as many as the layout has, or dynamic allows"
            ),
        ),
    ];
    for (broken, message) in &table {
        check(broken, message);
    }
}
