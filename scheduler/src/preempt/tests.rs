//! Preemption against a scripted API server: what is sent, and in which order.

use std::collections::VecDeque;
use std::sync::Arc;

use aliquot_k8s::event::{self, EventNote};
use aliquot_k8s::view::PodView;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1::Node;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::extender;
use crate::ledger_cache::tests::{cache, from, node, pod, pod_json, quota, with};
use crate::pod_client::tests::{api_server, status};

/// The calls that the API server got, one line each.
type CallLog = Arc<Mutex<Vec<String>>>;

/// The pod that preempts, as the API server has it.
#[derive(Debug, Default)]
struct ApiServer {
    preemptor: Value,
    /// The codes of the next writes of a plan, and of the next removals; then 200.
    codes: VecDeque<u16>,
    /// The watch does not show what is written.
    watch_is_late: bool,
    plans: Vec<Value>,
}

impl ApiServer {
    /// Writes the plan, or removes it, and shows that.
    fn annotate(&mut self, plan: &Value, cache: &LedgerCache) -> u16 {
        let code = self.codes.pop_front().unwrap_or(200);
        if code == 200 {
            let annotations = match plan.as_str() {
                Some(text) => {
                    self.plans.push(serde_json::from_str(text).unwrap());
                    json!({PREEMPTION: text})
                }
                None => json!({}),
            };
            self.preemptor["metadata"]["annotations"] = annotations;
            if !self.watch_is_late {
                Index::apply(cache, from::<PodView>(self.preemptor.clone()));
            }
        }
        code
    }
}

struct Scene {
    preemptor: Preemptor,
    state: PreemptionState,
    log: CallLog,
    api: Arc<Mutex<ApiServer>>,
    events: mpsc::Receiver<EventNote>,
}

impl Scene {
    /// A node of 1000 MiB. Evictions of pods named `protected…` are refused, of those named `late…`
    /// once they are no longer a dry run, and when one named `withdrawing…` is evicted, the plan is
    /// removed from its pod.
    fn new() -> Self {
        let (client, mut calls) = api_server();
        let log = CallLog::default();
        let written = log.clone();
        let api = Arc::new(Mutex::new(ApiServer::default()));
        let cache = Arc::new(cache());
        let (server, shown) = (api.clone(), cache.clone());
        tokio::spawn(async move {
            while let Some(call) = calls.next_call().await {
                let path = call.uri.path().replace("/pods/", "/");
                let path = path.trim_start_matches("/api/v1/namespaces/");
                let path = path.trim_start_matches("d/");
                let tried = call.uri.query().is_some_and(|q| q.contains("dryRun"));
                let uid = &call.body["deleteOptions"]["preconditions"]["uid"];
                let plan = &call.body["metadata"]["annotations"][PREEMPTION];
                let (line, code) = if let Some(name) = path.strip_suffix("/eviction") {
                    let bare = name.trim_start_matches("other/");
                    assert_eq!(uid, bare, "the uid is the precondition");
                    let what = if tried { "try" } else { "evict" };
                    let late = name.starts_with("late") && !tried;
                    if name.starts_with("withdrawing") && !tried {
                        server.lock().annotate(&Value::Null, &shown);
                    }
                    let code = if name.starts_with("protected") || late {
                        429
                    } else {
                        201
                    };
                    (format!("{what} {name}"), code)
                } else {
                    let what = match plan.as_str() {
                        None => "clear",
                        Some(text) if text.contains("given-up") => "close",
                        Some(_) => "write",
                    };
                    let code = server.lock().annotate(plan, &shown);
                    (format!("{what} {path}"), code)
                };
                written.lock().push(line);
                call.answer(code, &status(code));
            }
        });
        let (events, event_rx) = event::queue();
        let metrics = Metrics::new(&mut Registry::default());
        let preemptor = Preemptor::new(
            &cache,
            PodClient::new(client),
            &events,
            &Leader::always(),
            &metrics,
        );
        Self {
            preemptor,
            state: PreemptionState::default(),
            log,
            api,
            events: event_rx,
        }
    }

    fn show(&self, name: &str, memory: u64, node: Option<&str>, more: Value) -> PodView {
        let shown = with(pod_json(name, memory, node), more);
        if name == "p" {
            self.api.lock().preemptor = shown.clone();
        }
        let shown: PodView = from(shown);
        Index::apply(&*self.preemptor.cache, shown.clone());
        shown
    }

    fn bound_pod(&self, name: &str, memory: u64, priority: i32) {
        self.show(
            name,
            memory,
            Some("n"),
            json!({"spec": {"priority": priority}}),
        );
    }

    /// A pod `p` of 600 MiB and priority 10 that filter refused.
    fn refused(&self, more: Value) {
        let status = json!({
            "spec": {"priority": 10},
            "status": {"conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
        });
        let shown = self.show("p", 600, None, with(status, more));
        let cache = &self.preemptor.cache;
        let demand = aliquot_k8s::pod::demand(&shown, cache.settings()).unwrap();
        let waiting = PendingPod {
            offered: cache.snapshot().set(&["n"]),
            ..PendingPod::read(&shown, demand, true)
        };
        cache.lock().refuse(&"p".into(), waiting);
    }

    /// The calls when this much time has passed.
    async fn check(&mut self, after: Duration, expected: &[&str]) {
        self.run(after).await;
        assert_eq!(*self.log.lock(), expected);
    }

    async fn run(&mut self, after: Duration) {
        let end = Instant::now() + after;
        let mut ticks = tokio::time::interval(INTERVAL);
        while Instant::now() <= end {
            self.preemptor.reconcile(&mut self.state).await;
            ticks.tick().await;
        }
    }
}

fn plan(victim: &str, state: &str) -> Value {
    plan_until(&[victim], state, 60)
}

/// A plan until so many seconds from now.
fn plan_until(victims: &[&str], state: &str, seconds: i64) -> Value {
    let victim = |name: &&str| json!({"uid": name, "namespace": "d", "name": name});
    let victims: Vec<_> = victims.iter().map(victim).collect();
    let record = json!({"v": 1, "state": state, "node": "n", "until": unix() + seconds,
        "victims": victims,
        "reserved": {"GPU-n": {"replicas": 1, "memory": 600, "cores": 0, "alone": false, "leftover": true}}});
    json!({"metadata": {"annotations": {PREEMPTION: record.to_string()}}})
}

const SHORT: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(3);

#[tokio::test(start_paused = true)]
async fn tries_writes_and_executes_a_plan_once() {
    let mut scene = Scene::new();
    scene.bound_pod("low", 700, 1);
    scene.bound_pod("high", 100, 50);
    scene.refused(json!({}));
    scene.check(SHORT, &[]).await;
    let all = ["try low", "write p", "evict low"];
    scene.check(LONG, &all).await;
    let reserved = scene
        .preemptor
        .cache
        .read(|ledger| ledger.assumed(&"p".into()).is_some());
    assert!(reserved, "until it is bound");
    scene.show("p", 600, Some("n"), plan("low", "open"));
    let all = ["try low", "write p", "evict low", "clear p"];
    scene.check(SHORT, &all).await;
    let reserved = scene
        .preemptor
        .cache
        .read(|ledger| ledger.assumptions().count());
    assert_eq!(reserved, 0);
}

/// A pod may have any grace period: with the longest the plan's time was over at once.
#[tokio::test(start_paused = true)]
async fn evicts_a_pod_with_the_longest_grace_period() {
    let mut scene = Scene::new();
    let longest = json!({"spec": {"priority": 1, "terminationGracePeriodSeconds": i64::MAX}});
    scene.show("low", 900, Some("n"), longest);
    scene.refused(json!({}));
    let all = ["try low", "write p", "evict low"];
    scene.check(LONG, &all).await;
}

#[tokio::test(start_paused = true)]
async fn victims_of_the_namespace_give_back_their_part_of_its_quota() {
    let all = ["try low", "write p", "evict low"];
    for (limit, expected) in [("599", &[][..]), ("600", &all[..])] {
        let mut scene = Scene::new();
        Index::apply(&*scene.preemptor.cache, quota(limit));
        scene.bound_pod("low", 700, 1);
        scene.refused(json!({}));
        scene.check(LONG, expected).await;
    }
}

/// Whoever may read a pod reads its events and annotations, but not the pods of other namespaces.
#[tokio::test(start_paused = true)]
async fn names_no_pods_of_other_namespaces() {
    let mut scene = Scene::new();
    scene.bound_pod("low", 450, 1);
    let foreign = json!({"metadata": {"namespace": "other"}, "spec": {"priority": 1}});
    scene.show("theirs", 450, Some("n"), foreign);
    scene.refused(
        json!({"spec": {"containers": [{"name": "main", "resources": {"limits": {
        "nvidia.com/gpu": "1", "nvidia.com/gpumem": "900"}}}]}}),
    );
    scene.run(LONG).await;
    let calls = scene.log.lock().clone();
    assert!(
        calls.contains(&"evict other/theirs".to_owned()),
        "{calls:?}"
    );
    let plan = scene.api.lock().plans[0].to_string();
    assert!(plan.contains("low") && !plan.contains("other"), "{plan}");
    let mut texts = Vec::new();
    while let Ok(event) = scene.events.try_recv() {
        texts.push(format!("{}: {}", event.pod.name, event.text));
    }
    texts.sort();
    let expected = [
        "low: Preempted by pod d/p with a higher priority, for its share of a GPU on node n",
        "p: Evicting 2 pods on node n for this pod: d/low and 1 pod of another namespace",
        "theirs: Preempted by a pod of another namespace with a higher priority, for its share of a GPU on node n",
    ];
    assert_eq!(texts, expected);
}

/// kube-scheduler excluded the other node, as one whose taint the pod does not tolerate.
#[tokio::test(start_paused = true)]
async fn evicts_nobody_on_a_node_that_was_not_offered() {
    let mut scene = Scene::new();
    Index::<Node>::apply(&*scene.preemptor.cache, node("tainted", 1000));
    let cheaper = json!({"spec": {"priority": 0}});
    scene.show("cheaper", 700, Some("tainted"), cheaper);
    scene.bound_pod("low", 700, 1);
    scene.refused(json!({}));
    let all = ["try low", "write p", "evict low"];
    scene.check(LONG, &all).await;
}

#[tokio::test(start_paused = true)]
async fn skips_pod_protected_by_disruption_budget() {
    let mut scene = Scene::new();
    scene.bound_pod("protected", 450, 1);
    scene.bound_pod("low", 450, 2);
    scene.refused(
        json!({"spec": {"containers": [{"name": "main", "resources": {"limits": {
        "nvidia.com/gpu": "1", "nvidia.com/gpumem": "500"}}}]}}),
    );
    let all = ["try protected", "try low", "write p", "evict low"];
    scene.check(LONG, &all).await;
}

#[tokio::test(start_paused = true)]
async fn new_leader_continues_plan_of_the_previous_one() {
    let mut scene = Scene::new();
    scene.bound_pod("low", 500, 1);
    scene.bound_pod("lower", 500, 0);
    scene.refused(plan("low", "open"));
    scene.check(LONG, &["evict low"]).await;
}

#[tokio::test(start_paused = true)]
async fn makes_second_plan_only_after_a_pause() {
    let mut scene = Scene::new();
    scene.bound_pod("low", 900, 1);
    scene.refused(plan("gone", "given-up"));
    scene.check(LONG, &[]).await;
    scene.refused(plan_until(&["gone"], "given-up", 0));
    let all = ["try low", "write p", "evict low"];
    scene.check(LONG, &all).await;
    assert_eq!(scene.api.lock().plans[0]["attempt"], 2);
}

/// Its pod waited for the end of the plan's time, and then for ever.
#[tokio::test(start_paused = true)]
async fn gives_plan_up_when_its_node_is_gone() {
    let mut scene = Scene::new();
    scene.bound_pod("low", 900, 1);
    scene.refused(json!({}));
    let all = ["try low", "write p", "evict low"];
    scene.check(LONG, &all).await;
    Index::<Node>::delete(&*scene.preemptor.cache, node("n", 1000));
    let all = [&all[..], &["close p"]].concat();
    scene.check(LONG, &all).await;
    let closed = scene.api.lock().plans[1].clone();
    let pause = closed["until"].as_i64().unwrap() - unix();
    assert!((50..=60).contains(&pause), "the next plan in {pause} s");
}

#[tokio::test(start_paused = true)]
async fn pauses_after_a_plan_that_cannot_be_written() {
    let mut scene = Scene::new();
    scene.bound_pod("low", 700, 1);
    scene.api.lock().codes = [403; 99].into();
    scene.refused(json!({}));
    let all = ["try low", "write p", "try low", "write p"];
    scene.check(LONG, &all).await;
}

/// The answer to the removal was lost, and then the watch was late: the plan was taken up again.
#[tokio::test(start_paused = true)]
async fn withdrawn_plan_evicts_nobody() {
    let mut scene = Scene::new();
    scene.bound_pod("late", 700, 1);
    scene.refused(plan("late", "open"));
    {
        let mut api = scene.api.lock();
        (api.codes, api.watch_is_late) = ([500].into(), true);
    }
    let all = ["evict late", "clear p", "clear p"];
    scene.check(LONG, &all).await;
}

#[tokio::test(start_paused = true)]
async fn plan_removed_from_its_pod_evicts_nobody_else() {
    let mut scene = Scene::new();
    scene.bound_pod("withdrawing", 450, 1);
    scene.bound_pod("low", 450, 2);
    scene.refused(plan_until(&["withdrawing", "low"], "open", 60));
    scene.check(SHORT, &["evict withdrawing"]).await;
}

#[tokio::test(start_paused = true)]
async fn annotation_alone_evicts_nobody_of_same_priority() {
    let mut scene = Scene::new();
    scene.bound_pod("equal", 900, 10);
    scene.refused(plan("equal", "open"));
    scene.check(LONG, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_may_not_preempt_evict_nobody() {
    for more in [
        json!({"spec": {"preemptionPolicy": "Never"}}),
        json!({"spec": {"priority": 1}}),
        json!({"status": {"nominatedNodeName": "m"}}),
        json!({"status": {"conditions": []}}),
        // A finalizer keeps it.
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    ] {
        let mut scene = Scene::new();
        scene.bound_pod("low", 900, 1);
        scene.refused(more);
        scene.check(LONG, &[]).await;
    }
    let mut scene = Scene::new();
    scene.bound_pod("low", 900, 1);
    scene.show(
        "kubes",
        50,
        Some("n"),
        json!({
            "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
        }),
    );
    scene.refused(json!({}));
    scene.check(LONG, &[]).await;
    Index::delete(&*scene.preemptor.cache, pod("kubes", 50, Some("n")));
    scene
        .check(LONG, &["try low", "write p", "evict low"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn returns_only_victims_whose_eviction_makes_pod_fit() {
    let mut scene = Scene::new();
    scene.bound_pod("a", 500, 1);
    scene.bound_pod("b", 400, 2);
    scene.refused(json!({}));
    let body = |memory: &str, node: &str| {
        let mut pod = pod_json("p", 600, None);
        pod["spec"]["priority"] = json!(10);
        pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = json!(memory);
        json!({"Pod": pod, "NodeNameToMetaVictims": {node: {"Pods": [{"UID": "b"}], "NumPDBViolations": 1}}})
    };
    let cache = scene.preemptor.cache.clone();
    let ask = |memory: &str, node: &str| {
        let answer = extender::preempt(&cache, body(memory, node).to_string().as_bytes()).unwrap();
        serde_json::to_value(answer).unwrap()["NodeNameToMetaVictims"].clone()
    };
    let victims = |uids: &[&str]| {
        let pods: Vec<_> = uids.iter().map(|uid| json!({"UID": uid})).collect();
        json!({"n": {"Pods": pods, "NumPDBViolations": 1}})
    };
    assert_eq!(ask("1001", "n"), json!({}), "never fits");
    assert_eq!(ask("500", "unknown"), json!({}));
    assert_eq!(ask("500", "n"), victims(&["b"]), "that is enough");
    assert_eq!(ask("600", "n"), victims(&["b", "a"]), "one more");
    // From now on the pod is left to kube-scheduler, for a while.
    scene.check(LONG, &[]).await;
    scene.check(LONG, &["try a", "write p", "evict a"]).await;
    assert_eq!(ask("600", "n"), json!({}), "and now it is ours");
}
