//! Broken configurations, each with the one line that it must give.
//!
//! Fed by: nothing. Must not: accept a message that only contains the right words;
//! the whole line is compared.

use aliquot_profiles::read;

/// A configuration with one profile, `lab`.
fn lab(profile: &str) -> String {
    let profile = profile.replace('\n', "\n    ");
    format!("apiVersion: aliquot.dev/v1alpha1\nprofiles:\n  lab:\n    {profile}\n")
}

/// A profile with one entry that selects card 0.
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
    let said = match read(broken) {
        Ok(config) => panic!("accepted: {broken}\nas {config:?}"),
        Err(faults) => faults.to_string(),
    };
    assert_eq!(said, message, "\n{broken}");
}

#[test]
fn each_broken_file_gives_its_message() {
    let table = [
        (String::new(), "(file): null is nothing; accepted: the keys apiVersion, default, profiles"),
        ("profiles: {lab: {rest: vgpu}}".to_owned(), "apiVersion: is missing; accepted: aliquot.dev/v1alpha1"),
        ("apiVersion: v1\nprofiles: {lab: {rest: vgpu}}".to_owned(), r#"apiVersion: "v1" has another form; accepted: aliquot.dev/v1alpha1"#),
        ("apiVersion: aliquot.dev/v1alpha1".to_owned(), "profiles: is missing; accepted: keys with values"),
        ("apiVersion: aliquot.dev/v1alpha1\nprofiles: {lab: {rest: vgpu}}\ndefualt: lab".to_owned(), r#"defualt: "lab" is under an unknown key; accepted: apiVersion, default, profiles"#),
        ("apiVersion: aliquot.dev/v1alpha1\nprofiles: {lab: {rest: vgpu}}\ndefault: lap".to_owned(), r#"default: "lap" is no profile here; accepted: lab"#),
        ("apiVersion: aliquot.dev/v1alpha1\nprofiles: []".to_owned(), "profiles: [] is a list; accepted: keys with values"),
        ("apiVersion: aliquot.dev/v1alpha1\nprofiles: {-lab: {rest: vgpu}}".to_owned(), r#"profiles.-lab: "-lab" is not such a key; accepted: 1 to 63 letters, digits, '-', '_' and '.', the first and the last a letter or digit"#),
        ("apiVersion: aliquot.dev/v1alpha1\nprofiles:\n  lab: {rest: vgpu}\n  lab: {rest: mps}".to_owned(), "line 4, column 3: cannot be read (duplicate mapping key: lab); accepted: one YAML document, each key once"),
        ("apiVersion: aliquot.dev/v1alpha1\nprofiles: {lab: {rest: vgpu}".to_owned(), "line 2, column 11: cannot be read (unclosed bracket '{'); accepted: one YAML document, each key once"),
        ("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}".to_owned(), "(file): is a file of another format (nvidia); accepted: apiVersion aliquot.dev/v1alpha1; make one with: kubectl-aliquot config convert --from nvidia FILE"),
        ("version: v1\nmig-configs: {all-disabled: [{devices: all, mig-enabled: false}]}".to_owned(), "(file): is a file of another format (mig-parted); accepted: apiVersion aliquot.dev/v1alpha1; make one with: kubectl-aliquot config convert --from mig-parted FILE"),
    ];
    for (broken, message) in &table {
        check(broken, message);
    }
}

#[test]
fn each_broken_profile_gives_its_message() {
    let table = [
        (
            lab("{}"),
            "profiles.lab: says nothing of any card; accepted: gpus, rest, or both",
        ),
        (
            lab("gpu: [{select: {all: true}, mode: vgpu}]"),
            r#"profiles.lab.gpu: [{"mode":"vgpu","select":{"all":true}}] is under an unknown key; accepted: nodeSelector, gpus, rest, transition"#,
        ),
        (
            lab("nodeSelector: {pool: 7}\nrest: vgpu"),
            "profiles.lab.nodeSelector.pool: 7 is a number (quotes make it text); accepted: the value of a label, in quotes if it looks like a number or truth",
        ),
        (
            lab("gpus: {select: {all: true}, mode: vgpu}"),
            r#"profiles.lab.gpus: {"mode":"vgpu","select":{"all":true}} is keys with values; accepted: a list of: the key mode (vgpu, exclusive, timeslice, mps, mig, unmanaged) and that mode's keys"#,
        ),
        (
            lab("gpus: [{select: {all: true}, mode: vgpu}]\nrest: exclusive"),
            "profiles.lab.rest: is for no card: gpus[0] selects all; accepted: rest, or select.all, not both",
        ),
        (
            lab("rest: shared"),
            r#"profiles.lab.rest.mode: "shared" is no mode; accepted: vgpu, exclusive, timeslice, mps, mig, unmanaged"#,
        ),
        (
            lab("rest: timeslice"),
            "profiles.lab.rest.replicas: is missing; accepted: a whole number, 2 to 1000",
        ),
        (
            lab("rest: vgpu\ntransition: {policy: force}"),
            r#"profiles.lab.transition.policy: "force" is none of the known words; accepted: wait, evict"#,
        ),
        (
            lab("rest: vgpu\ntransition: {timeout: 30}"),
            "profiles.lab.transition.timeout: 30 is a number (quotes make it text); accepted: a time such as 30s, 10m or 2h, at most 168h",
        ),
        (
            lab("rest: vgpu\ntransition: {timeout: 30min}"),
            r#"profiles.lab.transition.timeout: "30min" has another form; accepted: a time such as 30s, 10m or 2h, at most 168h"#,
        ),
        (
            lab("gpus: [{mode: vgpu}]"),
            "profiles.lab.gpus[0].select: is missing; accepted: the keys all, index, uuid, pci, product",
        ),
        (
            lab("gpus: [{select: {}, mode: vgpu}]"),
            "profiles.lab.gpus[0].select: selects no card; accepted: all: true, or one or more of index, uuid, pci, product",
        ),
        (
            lab(
                "gpus:\n- {select: {index: [0, 1]}, mode: vgpu}\n- {select: {index: 1}, mode: exclusive}",
            ),
            "profiles.lab.gpus[1].select.index: 1 is selected by gpus[0], too; accepted: each card in one entry; rest is for those that are left",
        ),
        (
            lab(
                "gpus:\n- {select: {all: true}, mode: vgpu}\n- {select: {product: '*A30*'}, mode: exclusive}",
            ),
            r#"profiles.lab.gpus[1].select.product: "*A30*" is selected by gpus[0], too; accepted: each card in one entry; rest is for those that are left"#,
        ),
    ];
    for (broken, message) in &table {
        check(broken, message);
    }
}

#[test]
fn each_broken_selector_gives_its_message() {
    let table = [
        (
            select("all: true, index: 0"),
            "profiles.lab.gpus[0].select: selects all cards and names some; accepted: all: true alone, or the others",
        ),
        (
            select("index: -1"),
            "profiles.lab.gpus[0].select.index: -1 is not a whole number from 0 on; accepted: a whole number, 0 to 1023",
        ),
        (
            select("index: [0, '1']"),
            r#"profiles.lab.gpus[0].select.index[1]: "1" is text; accepted: a whole number, 0 to 1023"#,
        ),
        (
            select("index: [2, 2]"),
            "profiles.lab.gpus[0].select.index[1]: 2 is there twice; accepted: each entry once",
        ),
        (
            select("uuid: MIG-11111111-2222-3333-4444-555555555555"),
            r#"profiles.lab.gpus[0].select.uuid: "MIG-11111111-2222-3333-4444-555555555555" has another form; accepted: a card's uuid, GPU- and 8-4-4-4-12 hexadecimal digits (nvidia-smi -L prints it)"#,
        ),
        (
            select("uuid: GPU-1111"),
            r#"profiles.lab.gpus[0].select.uuid: "GPU-1111" has another form; accepted: a card's uuid, GPU- and 8-4-4-4-12 hexadecimal digits (nvidia-smi -L prints it)"#,
        ),
        (
            select("pci: 65:00"),
            r#"profiles.lab.gpus[0].select.pci: "65:00" has another form; accepted: in quotes, a PCI address such as 0000:65:00.0, or a PCI device id such as 0x20B010DE"#,
        ),
        (
            select("pci: 0x20B010DE"),
            "profiles.lab.gpus[0].select.pci: 548409566 is a number (quotes make it text); accepted: in quotes, a PCI address such as 0000:65:00.0, or a PCI device id such as 0x20B010DE",
        ),
        (
            select("product: []"),
            "profiles.lab.gpus[0].select.product: [] names nothing; accepted: a product as the driver names it, with * for any text and ? for any character, such as *A100*, or a list of such",
        ),
        (
            select("model: A30"),
            r#"profiles.lab.gpus[0].select.model: "A30" is under an unknown key; accepted: all, index, uuid, pci, product"#,
        ),
    ];
    for (broken, message) in &table {
        check(broken, message);
    }
}

#[test]
fn each_broken_mode_gives_its_message() {
    let table = [
        (
            first("modus: vgpu"),
            "profiles.lab.gpus[0].mode: is missing; accepted: vgpu, exclusive, timeslice, mps, mig, unmanaged",
        ),
        (
            first("mode: timeslicing"),
            r#"profiles.lab.gpus[0].mode: "timeslicing" is no mode; accepted: vgpu, exclusive, timeslice, mps, mig, unmanaged"#,
        ),
        (
            first("mode: vgpu, split: 0"),
            "profiles.lab.gpus[0].split: 0 is too small; accepted: a whole number, 1 to 1000",
        ),
        (
            first("mode: vgpu, memoryScaling: 20"),
            "profiles.lab.gpus[0].memoryScaling: 20 is no scaling; accepted: 0.1 to 16, with at most three decimals",
        ),
        (
            first("mode: vgpu, replicas: 4"),
            "profiles.lab.gpus[0].replicas: 4 is under an unknown key; accepted: mode, select, optional, reserve, split, memoryScaling, graphics, video",
        ),
        (
            first("mode: timeslice, replicas: 1"),
            "profiles.lab.gpus[0].replicas: 1 is too small; accepted: a whole number, 2 to 1000",
        ),
        (
            first("mode: timeslice, replicas: ten"),
            r#"profiles.lab.gpus[0].replicas: "ten" is text; accepted: a whole number, 2 to 1000"#,
        ),
        (
            first("mode: timeslice, replicas: 4, rename: gpu.shared"),
            r#"profiles.lab.gpus[0].rename: "gpu.shared" has another form; accepted: a resource with its domain, at most 63 characters after the '/', such as nvidia.com/gpu.shared"#,
        ),
        (
            first("mode: timeslice, replicas: 4, sliceLength: 2ms"),
            r#"profiles.lab.gpus[0].sliceLength: "2ms" is none of the known words; accepted: default, short, medium, long"#,
        ),
        (
            first("mode: timeslice, replicas: 4, strict: 'yes'"),
            r#"profiles.lab.gpus[0].strict: "yes" is text; accepted: true or false"#,
        ),
        (
            first("mode: mps, replicas: 49"),
            "profiles.lab.gpus[0].replicas: 49 is too large; accepted: a whole number, 1 to 48",
        ),
        (
            first("mode: mps, replicas: 2.5"),
            "profiles.lab.gpus[0].replicas: 2.5 is not a whole number from 0 on; accepted: a whole number, 1 to 48",
        ),
        (
            first("mode: mps, replicas: 4, memory: 4Gi"),
            r#"profiles.lab.gpus[0].memory: "4Gi" is none of the known words; accepted: even, full"#,
        ),
        (
            first("mode: mig"),
            "profiles.lab.gpus[0]: has neither a layout nor dynamic: true; accepted: one of the two",
        ),
        (
            first("mode: mig, dynamic: true, layout: [{profile: 1g.5gb}]"),
            "profiles.lab.gpus[0]: has both a layout and dynamic: true; accepted: one of the two",
        ),
        (
            first("mode: mig, layout: [{profile: 1g}]"),
            r#"profiles.lab.gpus[0].layout[0].profile: "1g" has another form; accepted: a MIG profile such as 1g.10gb, 1g.10gb+me or 3g.40gb"#,
        ),
        (
            first("mode: mig, layout: [{profile: 3g.20gb, count: 3}]"),
            "profiles.lab.gpus[0].layout: 9 compute slices are more than any card has; accepted: 7 or fewer together",
        ),
        (
            first("mode: mig, layout: [{profile: 1g.5gb, on: mps}]"),
            "profiles.lab.gpus[0].layout[0].on.replicas: is missing; accepted: a whole number, 1 to 48",
        ),
        (
            first("mode: mig, layout: [{profile: 1g.5gb, on: {mode: exclusive}}]"),
            r#"profiles.lab.gpus[0].layout[0].on.mode: "exclusive" is no mode; accepted: vgpu, timeslice, mps"#,
        ),
        (
            first("mode: mig, layout: [{profile: 1g.5gb}], allow: [1g.5gb]"),
            r#"profiles.lab.gpus[0].allow: ["1g.5gb"] holds only for instances that are made when needed; accepted: allow with dynamic: true"#,
        ),
        (
            first("mode: mig, strategy: single, layout: [{profile: 1g.5gb}, {profile: 2g.10gb}]"),
            r#"profiles.lab.gpus[0].strategy: "single" needs instances that are all alike; accepted: a layout of one profile, or strategy mixed"#,
        ),
        (
            first("mode: mig, dynamic: true, strategy: single"),
            r#"profiles.lab.gpus[0].strategy: "single" needs instances that are all alike; accepted: a layout of one profile, or strategy mixed"#,
        ),
        (
            first("mode: exclusive, split: 4, rename: 5"),
            "profiles.lab.gpus[0].split: 4 is under an unknown key; accepted: mode, select, optional, reserve, rename\nprofiles.lab.gpus[0].rename: 5 is a number (quotes make it text); accepted: a resource with its domain, at most 63 characters after the '/', such as nvidia.com/gpu.shared",
        ),
    ];
    for (broken, message) in &table {
        check(broken, message);
    }
}

#[test]
fn mig_15_each_reservation_that_cannot_be_meant_gives_its_message() {
    let reserve = |rest: &str| first(rest);
    let layout = "mode: mig, layout: [{profile: 1g.5gb, count: 2}]";
    let at = "profiles.lab.gpus[0].reserve";
    let table = [
        (
            reserve("mode: exclusive, reserve: []"),
            format!(
                "{at}: [] has too few entries; accepted: at least 1 of: the keys profile, count, namespaces"
            ),
        ),
        (
            reserve("mode: exclusive, reserve: [{namespaces: [Team_A]}]"),
            format!(
                "{at}[0].namespaces[0]: \"Team_A\" has another form; accepted: the name of a namespace: 1 to 63 lower-case letters, digits and '-', the first and the last no '-'"
            ),
        ),
        (
            reserve("mode: exclusive, reserve: [{count: 2, namespaces: [a]}]"),
            format!(
                "{at}[0].count: 2 counts nothing; accepted: count beside a profile; without one all of the card is kept"
            ),
        ),
        (
            reserve("mode: exclusive, reserve: [{profile: 1g.5gb, namespaces: [a]}]"),
            format!(
                "{at}[0].profile: \"1g.5gb\" needs mode mig; accepted: no profile: of a card that is not cut all is kept"
            ),
        ),
        (
            reserve(&format!(
                "{layout}, reserve: [{{namespaces: [a]}}, {{profile: 1g.5gb, namespaces: [b]}}]"
            )),
            format!(
                "{at}[0]: keeps all of the card, and another entry a part of it; accepted: one of the two"
            ),
        ),
        (
            reserve(&format!(
                "{layout}, reserve: [{{profile: 1g.5gb, count: 2, namespaces: [a]}}, {{profile: 1g.5gb, namespaces: [b]}}]"
            )),
            format!(
                "{at}[0].profile: \"1g.5gb\" is kept 3 times, and the card has 2; accepted: no more than the layout has, or dynamic allows"
            ),
        ),
        (
            reserve(
                "mode: mig, dynamic: true, allow: [1g.5gb], reserve: [{profile: 3g.20gb, namespaces: [a]}]",
            ),
            format!(
                "{at}[0].profile: \"3g.20gb\" is kept 1 times, and the card has 0; accepted: no more than the layout has, or dynamic allows"
            ),
        ),
    ];
    for (broken, message) in &table {
        check(broken, message);
    }
}
