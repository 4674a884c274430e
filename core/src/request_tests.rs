//! Tables for [`super::Written`]: what containers write, and what it means.

use super::*;

fn read(written: &[(&str, &str)]) -> Result<Written, Vec<RequestError>> {
    let names = ResourceNames::default();
    Written::read(|resource| {
        let short = names.of(resource).trim_start_matches("nvidia.com/");
        written
            .iter()
            .find(|(name, _)| *name == short)
            .map(|(_, value)| *value)
    })
}

fn shown(written: &[(&str, &str)], defaults: &Defaults) -> String {
    match read(written) {
        Ok(written) => match written.request(defaults) {
            None => "none".to_owned(),
            Some(request) => {
                let memory = match request.memory {
                    Memory::Mib(mib) => mib.to_string(),
                    Memory::Share(percent) => percent.to_string(),
                };
                format!("{} x {memory}, cores {}", request.count, request.cores)
            }
        },
        Err(errors) => errors
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; "),
    }
}

fn check(written: &[(&str, &str)], defaults: &Defaults, expected: &str) {
    assert_eq!(shown(written, defaults), expected, "{written:?}");
}

#[test]
fn fills_in_missing_values_from_defaults() {
    let base = Defaults::default();
    let whole = Defaults {
        bare_gpu: BareGpu::Whole,
        ..base
    };
    let own = Defaults {
        memory: Mib(0),
        cores: Percent(20),
        ..base
    };
    let no_count = Defaults { count: 0, ..base };
    let (part, cores) = (("gpumem-percentage", "50"), ("gpucores", "30"));
    let no_cores = ("gpucores", "0");
    let all = [("gpu", "2"), ("gpumem", "3k"), cores];
    // The first is HAMi's rule, where it has one.
    for (rule, written, defaults, expected) in [
        ("4.3.1", &[][..], base, "none"),
        ("", &[("gpu", "0")], base, "none"),
        (
            "",
            &[("gpu", "0"), ("gpumem", "0"), ("gpucores", "0")],
            base,
            "none",
        ),
        ("", &[("priority", "0")], base, "none"),
        ("4.3.4", &[("gpu", "1")], base, "1 x 5000 MiB, cores 0 %"),
        ("", &[("gpu", "1")], whole, "1 x 100 %, cores 100 %"),
        ("4.3.4", &[("gpu", "1")], own, "1 x 100 %, cores 20 %"),
        (
            "4.3.2",
            &[("gpumem", "3k")],
            base,
            "1 x 3000 MiB, cores 0 %",
        ),
        ("", &[("gpumem", "3k")], no_count, "none"),
        ("4.3.3", &[part], base, "1 x 50 %, cores 0 %"),
        ("4.3.5", &[cores], base, "1 x 5000 MiB, cores 30 %"),
        ("4.3.5", &[cores], whole, "1 x 5000 MiB, cores 30 %"),
        (
            "4.3.5",
            &[("gpu", "1"), no_cores],
            own,
            "1 x 100 %, cores 0 %",
        ),
        ("4.3.1", &all, base, "2 x 3000 MiB, cores 30 %"),
    ] {
        let found = shown(written, &defaults);
        assert_eq!(found, expected, "{written:?} rule {rule}");
    }
}

#[test]
fn rejects_invalid_container_requests() {
    let base = Defaults::default();
    let out = |value: &str, form: &str| format!("{value:?} is out of range; expected: {form}");
    let mib = Resource::Memory.expected();
    check(&[("gpumem", "0")], &base, &out("0", mib));
    check(&[("gpu", "1"), ("gpumem", "0")], &base, &out("0", mib));
    check(&[("gpumem", "2M")], &base, &out("2M", mib));
    check(
        &[("gpumem", "16Gi")],
        &base,
        &format!("\"16Gi\" has a binary suffix; expected: {mib} (write 16384, the unit is MiB)"),
    );
    check(
        &[("gpucores", "101")],
        &base,
        &out("101", Resource::Cores.expected()),
    );
    check(
        &[("gpumem-percentage", "0")],
        &base,
        &out("0", Resource::MemoryPercentage.expected()),
    );
    check(
        &[("priority", "2")],
        &base,
        &out("2", Resource::Priority.expected()),
    );
    check(
        &[("gpu", "65")],
        &base,
        &out("65", Resource::Gpu.expected()),
    );
    check(
        &[("gpu", "1"), ("gpumem", "1"), ("gpumem-percentage", "1")],
        &base,
        "memory is requested both in MiB and in percent; expected: one of the two",
    );
    check(
        &[("gpu", "0"), ("gpumem", "1")],
        &base,
        "a count of 0 with memory or compute; expected: 1 to 64 GPUs, or no other GPU resource",
    );
}

#[test]
fn reads_limits_before_requests_before_the_annotation() {
    let annotated = Written::of_numbers(|resource| match resource {
        Resource::Memory => Some(1),
        Resource::Cores => Some(30),
        _ => None,
    })
    .unwrap();
    let read = |amounts: &[(&'static str, &'static str)]| {
        let (names, extra) = (ResourceNames::default(), ["x/gpu".to_owned()]);
        ContainerRequest::read(amounts.iter().copied(), &annotated, &names, &extra)
    };
    let request = read(&[
        ("nvidia.com/gpu", "1"),
        ("nvidia.com/gpumem-percentage", "50"),
        ("nvidia.com/gpu", "9"),
        ("x/gpu", "2"),
    ])
    .unwrap();
    let numbers = Resource::ALL.map(|resource| request.written.get(resource));
    assert_eq!(numbers, [Some(1), None, Some(50), Some(30), None]);
    assert_eq!(request.others, [("x/gpu", 2)].into());
    let errors = read(&[
        ("nvidia.com/gpu", "65"),
        ("nvidia.com/mig-1g.5gb", "-1"),
        ("cpu", "many"),
    ])
    .unwrap_err();
    let names: Vec<&str> = errors.iter().map(|error| error.name.as_str()).collect();
    assert_eq!(names, ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu"]);
}
