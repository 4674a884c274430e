//! What follows from what the two probes saw.

use super::super::finding::Grade;
use super::*;

fn look(change: impl FnOnce(&mut Look)) -> Look {
    let mut look = Look {
        loaded: vec!["/.aliquot/libvgpu.so".to_owned()],
        told: [("NVIDIA_VISIBLE_DEVICES".to_owned(), "GPU-1".to_owned())].into(),
        has_page: true,
        root: "rw,redirect_dir=off".to_owned(),
        ..Look::default()
    };
    change(&mut look);
    look
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "what is judged is written where it is judged"
)]
fn check(share: Fact<Look>, past: Fact<Look>, bad: &[(&str, Grade)]) {
    let found = checks(&About("n".to_owned()), &share, &past, Ok(true));
    let found: Vec<_> = found
        .iter()
        .filter(|finding| finding.grade != Grade::Ok)
        .map(|finding| (finding.check, finding.grade))
        .collect();
    assert_eq!(found, bad);
}

#[test]
fn a_share_with_its_library_and_no_way_past_it_is_well() {
    let none = || Ok(look(|look| look.cards.clear()));
    check(Ok(look(|_| ())), none(), &[]);
    // By replacement nothing is loaded in a program that uses no GPU.
    let replaced = look(|look| {
        look.loaded.clear();
        look.standing_in = vec!["/usr/lib/libcuda.so.1".to_owned()];
    });
    check(Ok(replaced), none(), &[]);
}

#[test]
fn a_share_whose_gpu_is_named_by_mounts_was_called_one_without_a_gpu() {
    let by_mounts = |cards: &[&str]| {
        look(|look| {
            let way = ("NVIDIA_VISIBLE_DEVICES", BY_MOUNTS);
            look.told = [(way.0.to_owned(), way.1.to_owned())].into();
            look.cards = cards.iter().map(|&card| card.to_owned()).collect();
        })
    };
    check(Ok(by_mounts(&["nvidia0"])), Ok(look(|_| ())), &[]);
    let bad = ("share", Grade::Problem);
    check(Ok(by_mounts(&[])), Ok(look(|_| ())), &[bad]);
}

#[test]
fn what_a_probe_saw_is_named() {
    let none = || Ok(look(|look| look.cards.clear()));
    let (bad, warns) = (Grade::Problem, Grade::Warning);
    let bare = look(|look| {
        look.loaded.clear();
        look.told.clear();
        look.selinux = Some("1".to_owned());
        look.has_page = false;
    });
    check(
        Ok(bare),
        none(),
        &[("library", bad), ("share", bad), ("selinux", bad)],
    );
    let open = look(|look| look.cards = vec!["nvidia0".to_owned()]);
    check(Ok(look(|_| ())), Ok(open), &[("gpus-by-environment", bad)]);
    let moves = look(|look| look.root = "rw,redirect_dir=on".to_owned());
    check(Ok(moves), none(), &[("overlay-redirect-dir", warns)]);
    let moves = look(|look| {
        look.root = "rw".to_owned();
        look.redirect_dir = Some("Y".to_owned());
    });
    check(Ok(moves), none(), &[("overlay-redirect-dir", warns)]);
}

#[test]
fn a_probe_that_the_webhook_had_closed_was_called_well() {
    let closed = look(|look| {
        let void = ("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned());
        look.told = [void].into();
    });
    let unmade = ("gpus-by-environment", Grade::NotChecked);
    check(Ok(look(|_| ())), Ok(closed), &[unmade]);
}

#[test]
fn a_probe_that_did_not_run_leaves_its_checks_unmade() {
    let not = |why: &str| Err::<Look, _>(why.to_owned());
    let unmade = Grade::NotChecked;
    check(
        not("pending"),
        not("pending"),
        &[
            ("library", unmade),
            ("share", unmade),
            ("gpus-by-environment", unmade),
            ("selinux", unmade),
            ("overlay-redirect-dir", unmade),
        ],
    );
}

#[test]
fn the_probes_ask_for_a_share_and_for_none() {
    let names = ResourceNames::default();
    let share = Probe::Share.pod("n1", "i", &names, None);
    assert!(share["spec"].get("schedulerName").is_none());
    let own = Probe::Share.pod("n1", "i", &names, Some("s"));
    assert_eq!(own["spec"]["schedulerName"], "s");
    let limits = &share["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits["nvidia.com/gpu"], "1");
    let past = Probe::Past.pod("n1", "i", &names, Some("s"));
    assert!(past["spec"].get("schedulerName").is_none());
    assert!(past["spec"]["containers"][0].get("resources").is_none());
    assert_eq!(past["metadata"]["labels"]["aliquot.dev/webhook"], "ignore");
    for pod in [share, past] {
        assert!(serde_json::from_value::<Pod>(pod).is_ok());
    }
}
