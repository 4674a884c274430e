//! What is done about a resize in each state, and what is allocated after each outcome of its write.

use aliquot_core::resize::RESIZE;
use aliquot_k8s::event;
use aliquot_k8s::watch::Index;
use serde_json::{Value, json};

use super::*;
use crate::ledger_cache::tests::{cache, from, pod_json, used, with};
use crate::pod_client::tests::{Calls, api_server, status as answer};

const PAUSE: Duration = Duration::from_secs(10);
const REQUEST: &str = "main:gpumem=900";

fn allocation(memory: u64) -> Allocation {
    let text = json!({"v": 1, "node": "n", "priority": 1, "containers": {"main": [
        {"resource": "nvidia.com/gpu", "gpu": "GPU-0", "memory": memory, "cores": 0}]}});
    Allocation::decode(&text.to_string()).unwrap()
}

/// A resize from 600 to 400 MiB with the number 3, until second 100.
fn status(state: ResizeState, request: &str, until: Option<u64>) -> ResizeStatus {
    ResizeStatus {
        v: resize::VERSION,
        generation: 3,
        state,
        message: NOT_APPLIED.to_owned(),
        request: request.to_owned(),
        pending: Some(PendingResize {
            to: allocation(400),
            from: allocation(600),
            until,
        }),
        next: None,
    }
}

fn observed(request: Option<&str>, status: Option<ResizeStatus>) -> ObservedResize {
    ObservedResize {
        pod: PodRef::node("a"),
        node: "n".into(),
        request: request.map(str::to_owned),
        status,
    }
}

fn report(generation: u64, waits: Option<&str>, refused: Option<&str>) -> ResizeReport {
    ResizeReport {
        pod: "a".into(),
        generation,
        waits: waits.map(str::to_owned),
        refused: refused.map(str::to_owned),
    }
}

#[test]
fn acts_by_annotation_report_and_deadline() {
    let waiting = || Some(status(ResizeState::Waiting, "r", Some(100)));
    let back = || Some(status(ResizeState::Refused, "r", None));
    let settled = || {
        waiting().map(|status| ResizeStatus {
            pending: None,
            ..status
        })
    };
    let returned = |why: &str| Some(Action::Return(why.to_owned()));
    let decide = |request: &str| Some(Action::Decide(request.to_owned()));
    let explain = Some(Action::Explain("w".to_owned()));
    let late = |why: &str| returned(&format!("its deadline has passed: {why}"));
    let gone = returned("the annotation was removed");
    let (own, other) = (Some("r"), Some("s"));
    let done = || Some(report(3, None, None));
    let waits = |why| Some(report(3, Some(why), None));
    for (request, status, report, now, expected) in [
        (own, None, None, 0, decide("r")),
        (other, waiting(), done(), 0, decide("s")),
        (other, settled(), None, 0, decide("s")),
        (own, settled(), done(), 999, None),
        (None, settled(), None, 0, None),
        (own, waiting(), None, 99, None),
        (own, waiting(), Some(report(2, None, None)), 99, None),
        (own, waiting(), done(), 100, Some(Action::Finish)),
        (own, waiting(), waits("w"), 99, explain),
        (own, waiting(), waits(NOT_APPLIED), 99, None),
        (own, waiting(), None, 100, late(NOT_APPLIED)),
        (own, waiting(), waits("w"), 100, late("w")),
        (
            own,
            waiting(),
            Some(report(3, None, Some("x"))),
            0,
            returned("x"),
        ),
        (None, waiting(), None, 0, gone),
        (own, back(), waits("w"), 999, None),
        (None, back(), done(), 999, Some(Action::Finish)),
    ] {
        let observed = observed(request, status);
        let found = next(&observed, report.as_ref(), now, PAUSE);
        assert_eq!(found, expected, "{observed:?}, {report:?} at {now}");
    }
}

#[test]
fn decides_at_most_one_request_of_a_pod_in_ten_seconds() {
    let waiting = |message: &str| ResizeStatus {
        message: message.to_owned(),
        next: Some(50),
        ..status(ResizeState::Waiting, "r", Some(100))
    };
    let settled = ResizeStatus {
        pending: None,
        ..waiting("")
    };
    let decide = Some(Action::Decide("s".to_owned()));
    let explain = Some(Action::Explain("w".to_owned()));
    let waits = || Some(report(3, Some("w"), None));
    for (request, status, report, now, expected) in [
        ("s", settled.clone(), None, 40, None),
        ("s", settled.clone(), None, 49, None),
        ("s", settled.clone(), None, 50, decide.clone()),
        // Written by a clock that went wrong.
        ("s", settled, None, 39, decide),
        // What is under way goes on.
        (
            "s",
            waiting(NOT_APPLIED),
            Some(report(3, None, None)),
            40,
            Some(Action::Finish),
        ),
        (
            "s",
            waiting(NOT_APPLIED),
            Some(report(3, None, Some("x"))),
            40,
            Some(Action::Return("x".to_owned())),
        ),
        // Of what it waits for, the first is shown at once.
        ("r", waiting(NOT_APPLIED), waits(), 40, explain.clone()),
        ("r", waiting("v"), waits(), 40, None),
        ("r", waiting("v"), waits(), 50, explain),
    ] {
        let observed = observed(Some(request), Some(status));
        let found = next(&observed, report.as_ref(), now, PAUSE);
        assert_eq!(found, expected, "{observed:?}, {report:?} at {now}");
    }
    let waiting = observed(Some("r"), Some(waiting("v")));
    let after = |action| change(&waiting, action, Some(70)).unwrap().status.next;
    assert_eq!(after(Action::Explain("w".to_owned())), Some(70));
    assert_eq!(after(Action::Return("w".to_owned())), Some(50));
    assert_eq!(after(Action::Finish), Some(50));
}

#[test]
fn allocation_becomes_smaller_only_when_enforced() {
    let observed = observed(
        Some("r"),
        Some(status(ResizeState::Waiting, "r", Some(100))),
    );
    let refused = change(&observed, Action::Return("why".to_owned()), None).unwrap();
    assert_eq!(refused.allocation, None);
    assert_eq!(
        (refused.status.state, refused.status.generation),
        (ResizeState::Refused, 4)
    );
    let back = refused.status.pending.unwrap();
    assert_eq!((back.to, back.until), (allocation(600), None));
    let finished = change(&observed, Action::Finish, None).unwrap();
    assert_eq!(finished.allocation, Some(allocation(400)));
    assert_eq!(finished.status.state, ResizeState::Applied);
    assert_eq!(finished.status.pending, None);
    let explained = change(&observed, Action::Explain("w".to_owned()), None).unwrap();
    assert_eq!(
        (explained.allocation, explained.status.message),
        (None, "w".to_owned())
    );
}

/// Pod `a` with 600 of 1000 MiB, asked to have 900.
fn asked(version: &str, request: &str) -> Value {
    let more = json!({"resourceVersion": version, "annotations": {RESIZE: request}});
    with(pod_json("a", 600, Some("n")), json!({"metadata": more}))
}

/// A cache that shows it, and a resizer of it.
fn scene() -> (Arc<LedgerCache>, Resizer, Calls) {
    let (client, calls) = api_server();
    let cache = Arc::new(cache());
    Index::<PodView>::apply(&*cache, from(asked("1", REQUEST)));
    let (events, _event_rx) = event::queue();
    let pods = PodClient::new(client);
    let resizer = Resizer::new(cache.clone(), pods, events, Leader::always(), false, PAUSE);
    (cache, resizer, calls)
}

/// What the API server answers to a PATCH, and the pod's version at the GET after it.
type Answers = &'static [(u16, Option<&'static str>)];

/// Plays the answers; the pod is as the PATCH left it where a later version has it.
async fn play(answers: Answers, mut calls: Calls) {
    let mut next = async |method: &str| {
        let call = calls.next_call().await.expect("a call is missing");
        assert_eq!(call.method.as_str(), method);
        call
    };
    next("GET").await.answer(200, &asked("1", REQUEST));
    for (code, version) in answers {
        let call = next("PATCH").await;
        let metadata = &call.body["metadata"];
        assert_eq!(metadata["resourceVersion"], "1");
        let status = metadata["annotations"][RESIZE_STATUS].as_str();
        let status = ResizeStatus::decode(status.unwrap()).unwrap();
        assert!(status.defers(unix(), PAUSE));
        call.answer(*code, &answer(*code));
        if let Some(version) = version {
            next("GET").await.answer(200, &asked(version, REQUEST));
        }
    }
    assert!(calls.next_call().await.is_none(), "a call too many");
}

/// Decides on pod `a`; checks what is allocated then, before the watch shows anything.
async fn check(answers: Answers, expected: u64) {
    let (cache, resizer, calls) = scene();
    let reference = from::<PodView>(asked("1", REQUEST)).reference();
    tokio::join!(play(answers, calls), async move {
        resizer.act(&"a".into(), &reference).await;
    });
    assert_eq!(used(&cache), expected, "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn reserves_resize_until_its_outcome_is_definite() {
    check(&[(200, None)], 900).await;
    // Of another version by now: decided again.
    check(&[(409, None)], 600).await;
    check(&[(403, None)], 600).await;
    // Unknown: the same again while the pod has that version.
    check(&[(500, Some("1")), (200, None)], 900).await;
    check(&[(500, Some("2"))], 600).await;
    check(&[(500, Some("1")), (409, Some("2"))], 600).await;
}

/// This replica leads no more while its PATCH is unanswered, but may lead again, on the same list.
#[tokio::test(start_paused = true)]
async fn retains_resize_of_unknown_outcome_while_not_leading() {
    for (written, expected) in [(true, 900), (false, 600)] {
        let (cache, resizer, mut calls) = scene();
        let leader = Leader::replica();
        leader.set_holder("pod-a_1");
        let resizer = Resizer {
            leader: leader.clone(),
            ..resizer
        };
        let api = async {
            let get = calls.next_call().await.unwrap();
            get.answer(200, &asked("1", REQUEST));
            let patch = calls.next_call().await.unwrap();
            let more = json!({"metadata": {"annotations": patch.body["metadata"]["annotations"]}});
            leader.set_holder("pod-b_1");
            patch.answer(500, &answer(500));
            let get = calls.next_call().await.unwrap();
            get.answer(200, &asked("1", REQUEST));
            let get = calls.next_call().await.expect("the outcome is unknown");
            assert_eq!(get.method, http::Method::GET);
            assert_eq!(used(&cache), 900, "nothing is free yet");
            let later = asked("2", REQUEST);
            let later = if written { with(later, more) } else { later };
            get.answer(200, &later);
        };
        let reference = from::<PodView>(asked("1", REQUEST)).reference();
        tokio::join!(api, async move {
            resizer.act(&"a".into(), &reference).await;
        });
        assert_eq!(used(&cache), expected, "written: {written}");
    }
}

/// Somebody writes the pod between each GET and its PATCH.
#[tokio::test(start_paused = true)]
async fn repeats_conflicting_resize_at_most_five_times_a_second() {
    let (cache, resizer, mut calls) = scene();
    let stop = CancellationToken::new();
    let running = tokio::spawn(resizer.run(stop.clone()));
    let end = Instant::now() + Duration::from_secs(2);
    let mut patches = 0;
    while let Ok(call) = tokio::time::timeout_at(end, calls.next_call()).await {
        let call = call.unwrap();
        if call.method == http::Method::GET {
            call.answer(200, &asked("1", REQUEST));
            continue;
        }
        patches += 1;
        assert!(patches <= 11, "without a pause");
        let request = format!("{REQUEST} id={patches}");
        let again = asked(&patches.to_string(), &request);
        Index::<PodView>::apply(&*cache, from(again));
        call.answer(409, &answer(409));
    }
    assert!(patches >= 5, "{patches}");
    stop.cancel();
    running.await.unwrap();
}
