//! Resizes of running pods: what their annotation may say, and what the ledger grants.

use crate::inventory::Mode;
use crate::ledger::{Ledger, NotResized};
use crate::request::Resource;
use crate::resize::{self, ResizeRequest, Resized};
use crate::tests::{self, gpu, ledger, memory_quota, published, reserve};
use crate::usage::AllocatedUse;
use crate::{Allocation, Mib, Percent, Stage};

#[test]
fn parses_amounts_of_each_container() {
    let parsed =
        ResizeRequest::parse(" main:gpumem=6k,gpucores=40  s:gpumem-percentage=5 id=b deadline=9 ");
    let parsed = parsed.unwrap();
    let main = &parsed.containers["main"];
    assert_eq!(main.get(Resource::Memory), Some(6000));
    assert_eq!(main.get(Resource::Cores), Some(40));
    assert_eq!(
        parsed.containers["s"].get(Resource::MemoryPercentage),
        Some(5)
    );
    assert_eq!((parsed.containers.len(), parsed.deadline), (2, 9));
    let short = ResizeRequest::parse("c:gpucores=0").unwrap();
    assert_eq!(short.deadline, resize::DEADLINE);
}

#[test]
fn names_field_value_and_form_of_invalid_resize() {
    for (text, expected) in [
        ("", "no container is named; expected: CONTAINER:gpumem=MIB"),
        ("id=a", "no container is named"),
        (
            "main",
            "\"main\" is unknown; expected: CONTAINER:gpumem=MIB",
        ),
        ("main:", "\"main:\" is unknown"),
        ("main:gpus=1", "\"main:gpus=1\" is unknown"),
        ("main:gpumem", "\"main:gpumem\" is unknown"),
        (
            "c:gpumem=1,gpumem=2",
            "c:gpumem is written twice; expected: once",
        ),
        ("c:gpumem=1 c:gpucores=2", "c:gpucores=2 is written twice"),
        ("c:gpumem=1 id=a id=b", "id=b is written twice"),
        (
            "c:gpumem=6Gi",
            "container \"c\", gpumem: \"6Gi\" has a binary suffix; expected: a whole number of MiB, 1 to 1048576 (write 6144, the unit is MiB)",
        ),
        (
            "c:gpumem=1,gpumem-percentage=2",
            "container \"c\", gpumem-percentage: memory is requested both in MiB and in percent",
        ),
        (
            "c:gpumem=1 deadline=0",
            "deadline \"0\" is out of range; expected: whole seconds, 1 to 604800",
        ),
    ] {
        let error = ResizeRequest::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
}

const NODE: &str = "n";

/// A pod with one container `c0` of this share.
fn bind(ledger: &mut Ledger, pod: &str, memory: u64, cores: u32) -> Option<Allocation> {
    reserve(ledger, pod, NODE, &tests::app(1, memory, cores)).ok()
}

fn show(ledger: &mut Ledger, pod: &str, allocation: &Allocation) {
    let used = AllocatedUse::Known(resize::uses(allocation, &app()));
    let host = crate::HostResources::default();
    ledger.confirm(&pod.into(), &"team".into(), &NODE.into(), used, host);
}

fn app() -> Vec<(String, Stage)> {
    vec![("c0".to_owned(), Stage::App)]
}

fn ask(
    ledger: &mut Ledger,
    pod: &str,
    allocation: &Allocation,
    text: &str,
) -> Result<Resized, NotResized> {
    let request = ResizeRequest::parse(text).unwrap();
    let both = (allocation, allocation);
    ledger.reserve_resize(&pod.into(), 1, both, &request, &app())
}

fn share(allocation: &Allocation) -> (u64, u32) {
    let grant = &allocation.containers["c0"][0];
    (grant.memory.0, grant.cores.0)
}

/// MiB and percent.
type Amounts = (u64, u32);

/// Two pods of 400 MiB and 30 % on a GPU of 1000 MiB; the first is resized.
fn check(text: &str, expected: Result<(Amounts, Amounts), &str>) {
    let mut ledger = ledger(vec![gpu(0, 1000, 9)]);
    ledger.set_quota(&"team".into(), "q", Some(memory_quota(950)));
    let allocation = bind(&mut ledger, "a", 400, 30).unwrap();
    let _other = bind(&mut ledger, "b", 400, 30).unwrap();
    match (ask(&mut ledger, "a", &allocation, text), expected) {
        (Ok(found), Ok((to, allocated))) => {
            assert_eq!(
                (share(&found.to), share(&found.allocation)),
                (to, allocated),
                "{text}"
            );
        }
        (Err(NotResized::Refused(why)), Err(expected)) => {
            assert_eq!(why.to_string(), expected, "{text}");
        }
        (found, expected) => panic!("{text}: {found:?}, {expected:?}"),
    }
    assert!(ledger == ledger.recompute(), "{text}");
}

#[test]
fn grants_what_gpu_and_quota_have_left() {
    check("c0:gpumem=550", Ok(((550, 30), (550, 30))));
    check(
        "c0:gpumem-percentage=50,gpucores=70",
        Ok(((500, 70), (500, 70))),
    );
    // Allocated is the larger of both until the node enforces the new share.
    check("c0:gpumem=100,gpucores=60", Ok(((100, 60), (400, 60))));
    check("c0:gpumem=100,gpucores=0", Ok(((100, 0), (400, 30))));
    check(
        "c0:gpumem=601",
        Err(
            "GPU-0 has too little left (CardInsufficientMemory): the pod would use 601 MiB and 30 % compute of it; what fits: 600 MiB and 70 % compute",
        ),
    );
    check(
        "c0:gpucores=71",
        Err(
            "GPU-0 has too little left (CardInsufficientCore): the pod would use 400 MiB and 71 % compute of it; what fits: 600 MiB and 70 % compute",
        ),
    );
    check(
        "c0:gpumem=551",
        Err("namespace team: limits.nvidia.com/gpumem used 400, asked 551, limit 950 of quota q"),
    );
    check(
        "main:gpumem=1",
        Err("container \"main\" has no share of a GPU; expected: one of c0"),
    );
}

#[test]
fn shrinks_on_cordoned_gpu_but_does_not_grow() {
    let mut cordoned = gpu(0, 1000, 9);
    cordoned.cordon = Some("maintenance".to_owned());
    let mut ledger = ledger(vec![gpu(0, 1000, 9)]);
    let allocation = bind(&mut ledger, "a", 400, 30).unwrap();
    ledger.publish(&NODE.into(), Some(published(vec![cordoned])));
    let why = match ask(&mut ledger, "a", &allocation, "c0:gpumem=500") {
        Err(NotResized::Refused(why)) => why.to_string(),
        found => panic!("{found:?}"),
    };
    assert!(
        why.ends_with("what fits: 400 MiB and 30 % compute"),
        "{why}"
    );
    assert!(ask(&mut ledger, "a", &allocation, "c0:gpumem=300").is_ok());
}

#[test]
fn refuses_modes_with_shares_of_fixed_size() {
    for mode in [Mode::Exclusive, Mode::Timeslice, Mode::Mps, Mode::Mig] {
        let mut ledger = ledger(vec![gpu(0, 1000, 9)]);
        let allocation = bind(&mut ledger, "a", 400, 30).unwrap();
        let mut other = gpu(0, 1000, 9);
        other.mode = mode;
        ledger.publish(&NODE.into(), Some(published(vec![other])));
        let why = match ask(&mut ledger, "a", &allocation, "c0:gpumem=300") {
            Err(NotResized::Refused(why)) => why.to_string(),
            found => panic!("{mode:?}: {found:?}"),
        };
        let name = mode.name();
        assert_eq!(
            why,
            format!(
                "GPU-0 is shared in mode {name}, whose shares cannot be resized; expected: a GPU in mode vgpu"
            )
        );
    }
}

#[test]
fn event_from_before_the_resize_frees_nothing() {
    let mut ledger = ledger(vec![gpu(0, 1000, 9)]);
    let before = bind(&mut ledger, "a", 400, 30).unwrap();
    show(&mut ledger, "a", &before);
    let resized = ask(&mut ledger, "a", &before, "c0:gpumem=900").unwrap();
    show(&mut ledger, "a", &before);
    assert_eq!(bind(&mut ledger, "b", 200, 30), None);
    assert_eq!(
        ask(&mut ledger, "a", &before, "c0:gpumem=1"),
        Err(NotResized::Behind)
    );
    ledger.end_resize(&"a".into(), 1);
    show(&mut ledger, "a", &resized.allocation);
    assert_eq!(bind(&mut ledger, "b", 200, 30), None);
    // One that is definitely not written is undone.
    let more = ask(&mut ledger, "a", &resized.allocation, "c0:gpumem=1000");
    assert!(more.is_ok());
    ledger.end_resize(&"a".into(), 1);
    assert!(bind(&mut ledger, "b", 100, 30).is_some());
}

#[test]
fn node_enforces_only_proven_sizes() {
    let mut ledger = ledger(vec![gpu(0, 1000, 9)]);
    let allocation = bind(&mut ledger, "a", 400, 30).unwrap();
    let with = |change: &dyn Fn(&mut crate::Grant)| {
        let mut other = allocation.clone();
        other.containers.values_mut().flatten().for_each(change);
        other
    };
    let smaller = with(&|grant| grant.memory = Mib(1));
    assert_eq!(resize::unproven(&allocation, &smaller, &allocation), None);
    let larger = with(&|grant| grant.cores = Percent(31));
    let why = resize::unproven(&allocation, &larger, &allocation);
    assert_eq!(why, Some("it is more than the pod's allocation"));
    assert_eq!(resize::unproven(&allocation, &larger, &larger), None);
    let elsewhere = with(&|grant| grant.gpu = "GPU-9".into());
    let why = resize::unproven(&allocation, &elsewhere, &elsewhere);
    assert_eq!(
        why,
        Some("its devices are not those of the pod's allocation")
    );
}
