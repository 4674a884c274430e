//! Calls as kube-scheduler and simulators send them, answered from small books.

use std::sync::Arc;

use aliquot_k8s::event;
use aliquot_k8s::watch::Index;
use serde_json::{Value, json};

use super::*;
use crate::books::tests::{node, pod};

/// Nodes `a` of 1000 MiB, `b` of 500 and `c` of 2000, with nothing on them.
fn books() -> Books {
    let books = Books::default();
    let nodes = [("a", 1000), ("b", 500), ("c", 2000)];
    Index::<Node>::reset(&books, nodes.map(|(name, size)| node(name, size)).to_vec());
    Index::<Pod>::reset(&books, vec![]);
    books
}

fn call(pod: &Value, nodes: &Value) -> Vec<u8> {
    let key = if nodes[0].is_string() {
        "NodeNames"
    } else {
        "Nodes"
    };
    let nodes = match key {
        "Nodes" => json!({"items": nodes}),
        _ => nodes.clone(),
    };
    json!({"Pod": pod, key: nodes}).to_string().into_bytes()
}

fn asks(name: &str, memory: u64) -> Value {
    serde_json::to_value(pod(name, memory, None)).unwrap()
}

fn filter(books: &Books, body: &[u8], shortlist: usize) -> Value {
    let (notes, _events) = event::queue();
    let call = Call::read(body, books.settings()).unwrap();
    let (_, answer) = call.filter(books, &notes, shortlist);
    serde_json::to_value(answer).unwrap()
}

fn ranks(books: &Books, body: &[u8]) -> Vec<(String, i64)> {
    let call = Call::read(body, books.settings()).unwrap();
    let lines = call.prioritize(books).into_iter();
    lines.map(|line| (line.host, line.score)).collect()
}

#[test]
fn a_node_object_without_a_name_was_ranked_though_filter_could_not_answer_it() {
    let nodes = json!([{"metadata": {"name": "a"}}, {"metadata": {}}]);
    let body = json!({"Pod": asks("p", 100), "Nodes": {"items": nodes}}).to_string();
    let refused = Call::read(body.as_bytes(), books().settings()).map(|_| ());
    let why = "the extender call's Nodes.items[1].metadata.name is missing";
    assert_eq!(refused, Err(why.to_owned()));
}

#[test]
fn a_pod_that_kube_scheduler_weighs_by_wishes_gets_all_nodes_that_fit() {
    let books = books();
    let names = json!(["a", "b", "c"]);
    let mut wishes = asks("p", 100);
    let first = filter(&books, &call(&wishes, &names), 1);
    assert_eq!(first["NodeNames"], json!(["b"]));
    let all = filter(&books, &call(&wishes, &names), 0);
    assert_eq!(all["NodeNames"], json!(["b", "a", "c"]));
    for (field, wish) in [
        (
            "topologySpreadConstraints",
            json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]),
        ),
        (
            "affinity",
            json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {}}]}}),
        ),
    ] {
        wishes["spec"][field] = wish;
        let answer = filter(&books, &call(&wishes, &names), 1);
        assert_eq!(answer["NodeNames"], json!(["b", "a", "c"]), "{field}");
        wishes["spec"][field] = Value::Null;
    }
}

#[test]
fn a_refusal_is_one_entry_and_remembers_which_nodes_were_offered() {
    let books = books();
    let answer = filter(&books, &call(&asks("p", 900), &json!(["b", "gone"])), 64);
    let text = "0/2 nodes can serve the GPU request: 1 CardInsufficientMemory, 1 NodeNotRegistered";
    assert_eq!(answer["FailedAndUnresolvableNodes"], json!({"b": text}));
    assert_eq!(answer["FailedNodes"], Value::Null);
    assert_eq!(answer["NodeNames"], json!([]));
    // Room on a node that has a taint against the pod is none for it.
    let offered = books.waiting(&"p".into()).unwrap().offered;
    let cluster = books.snapshot();
    let inside = |name| offered.contains(cluster.slot(name).unwrap());
    assert_eq!(["a", "b", "c"].map(inside), [false, true, false]);
    Index::<Node>::apply(&books, node("c", 3000));
    assert!(books.wakeable().is_empty());
    Index::<Node>::apply(&books, node("b", 3000));
    assert_eq!(books.wakeable().len(), 1);
}

#[test]
fn whole_nodes_are_judged_by_what_they_say_and_nothing_is_remembered() {
    let books = books();
    assert!(
        books
            .reserve(&"x".into(), &"d".into(), &"a".into(), &demand(900))
            .is_ok()
    );
    let nodes = json!([node("a", 1000), node("new", 700), node("small", 100)]);
    let answer = filter(&books, &call(&asks("p", 600), &nodes), 64);
    let names: Vec<_> = answer["Nodes"]["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| &n["metadata"]["name"])
        .collect();
    assert_eq!(names, ["new", "a"], "as if empty, best first");
    assert_eq!(answer["NodeNames"], Value::Null);
    let answer = filter(&books, &call(&asks("p", 6000), &nodes), 64);
    assert_eq!(answer["Nodes"]["items"], json!([]));
    assert!(answer["FailedAndUnresolvableNodes"]["a"].is_string());
    assert_eq!(
        ranks(&books, &call(&asks("p", 600), &nodes))[1],
        ("new".to_owned(), 10)
    );
    assert!(books.waiting(&"p".into()).is_none());
    assert_eq!(books.snapshot().slot("new"), None);
}

#[test]
fn a_pod_without_a_share_was_refused_on_node_objects_without_cards() {
    let books = books();
    let bare = json!({"metadata": {"name": "p", "uid": "p"}, "spec": {"containers": []}});
    let nodes = json!([{"metadata": {"name": "cpu"}}, node("a", 1000)]);
    let body = call(&bare, &nodes);
    let answer = filter(&books, &body, 64);
    assert_eq!(answer["Nodes"]["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(answer["FailedAndUnresolvableNodes"], Value::Null);
    let zero = |name: &str| (name.to_owned(), 0);
    assert_eq!(ranks(&books, &body), [zero("cpu"), zero("a")]);
}

fn demand(memory: u64) -> Demand {
    pod::demand(&pod("d", memory, None), &pod::Settings::default()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn pods_decided_one_after_the_other_are_not_all_told_the_same_last_place() {
    let books = books();
    let names = json!(["a", "c"]);
    let best =
        |name: &str| filter(&books, &call(&asks(name, 700), &names), 64)["NodeNames"][0].clone();
    assert_eq!(best("p"), "a");
    assert_eq!(best("p"), "a", "its own note does not count");
    assert_eq!(best("q"), "c", "p is about to fill a");
    assert_eq!(
        ranks(&books, &call(&asks("r", 700), &json!(["a"]))),
        [("a".to_owned(), 10)]
    );
    tokio::time::advance(crate::claims::LIFE).await;
    assert_eq!(best("s"), "a", "notes last two seconds");
}

#[test]
fn pods_without_gpu_are_ranked_only_by_the_entry_that_is_theirs() {
    let books = books();
    assert!(
        books
            .reserve(&"x".into(), &"d".into(), &"b".into(), &demand(500))
            .is_ok()
    );
    let names = json!(["a", "b", "no-gpu"]);
    let plain =
        json!({"metadata": {"name": "cpu", "uid": "cpu"}, "spec": {"containers": [{"name": "c"}]}});
    let cpu_only = |pod: &Value| {
        let body = call(pod, &names);
        let call = Call::read(&body, books.settings()).unwrap();
        let ranks = call.prioritize_cpu_only(&books).into_iter();
        ranks.map(|line| line.score).collect::<Vec<_>>()
    };
    let ranks_of = |pod: &Value| {
        ranks(&books, &call(pod, &names))
            .into_iter()
            .map(|(_, rank)| rank)
            .collect::<Vec<_>>()
    };
    assert!(cpu_only(&plain)[2] == 10 && cpu_only(&plain)[0] < 10);
    assert_eq!(ranks_of(&plain), [0, 0, 0]);
    assert_eq!(cpu_only(&asks("p", 1)), [0, 0, 0]);
}

/// A pod that wants one instance at one place, bound to it or not.
fn pinned(name: &str, bound: bool) -> Value {
    let mut pod = asks(name, 1);
    let limits = json!({"nvidia.com/mig-3g.20gb": "1"});
    pod["spec"]["containers"] = json!([{"name": "main", "resources": {"limits": limits}}]);
    let mut annotations = json!({"aliquot.dev/use-gpu": "1:4:3g.20gb"});
    if bound {
        pod["spec"]["nodeName"] = json!("a");
        let given = json!({"v": 1, "node": "a", "priority": 1, "containers": {"main": [
            {"resource": "nvidia.com/mig-3g.20gb", "gpu": "GPU-a", "memory": 19968, "cores": 42,
                "mig": {"profile": "3g.20gb", "start": 4}}]}});
        annotations["aliquot.dev/allocation"] = json!(given.to_string());
    }
    pod["metadata"]["annotations"] = annotations;
    pod
}

#[test]
fn a_call_that_cannot_be_read_says_what_is_missing() {
    let settings = pod::Settings::default();
    let check = |body: Value, expected: &str| {
        let body = body.to_string();
        let error = Call::read(body.as_bytes(), &settings).err().unwrap();
        assert!(error.contains(expected), "{error}");
    };
    check(json!({}), "no Pod");
    check(json!({"Pod": {}}), "neither NodeNames nor Nodes");
    check(json!({"Pod": 7}), "cannot read the extender call");
    let odd = json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpumem": "16Gi"}}}]}});
    check(json!({"Pod": odd, "NodeNames": []}), "16384");
}

/// Node `a` has one card that is cut as pods come.
fn pinned_books() -> Books {
    let books = books();
    let mut card: Node = node("a", 1000);
    let text = json!({"v": 1, "reads": [1], "gpus": [{
        "uuid": "GPU-a", "index": 1, "model": "A100", "memory": 40960, "scaled": 40960,
        "cores": 100, "seats": 0, "mode": "mig", "resource": "nvidia.com/gpu", "health": "ok",
        "mig": {"compute": 7, "profiles": [{"name": "3g.20gb", "compute": 3, "size": 4,
            "memory": 19968, "starts": [0, 4], "most": 2}], "instances": []},
    }]});
    let annotations = [(
        aliquot_core::inventory::INVENTORY.to_owned(),
        text.to_string(),
    )];
    card.metadata.annotations = Some(annotations.into());
    Index::<Node>::reset(&books, vec![card]);
    books
}

#[tokio::test(start_paused = true)]
async fn mig_5_a_second_pod_with_a_pin_is_told_who_holds_it() {
    let books = pinned_books();
    let names = json!(["a"]);
    let free = filter(&books, &call(&pinned("first", false), &names), 64);
    assert_eq!(free["NodeNames"], names);
    let holder: Pod = serde_json::from_value(pinned("first", true)).unwrap();
    Index::<Pod>::reset(&books, vec![holder]);
    let answer = filter(&books, &call(&pinned("second", false), &names), 64);
    let text = "0/1 nodes can serve the GPU request: 1 CardPinned (held by d/first)";
    assert_eq!(answer["FailedAndUnresolvableNodes"]["a"], text);
}

#[test]
fn who_holds_a_pinned_card_was_looked_for_on_every_node() {
    let books = pinned_books();
    let many: Vec<String> = (0..50).map(|n| format!("n{n}")).collect();
    for name in &many {
        Index::<Node>::apply(&books, node(name, 1000));
    }
    let holder: Pod = serde_json::from_value(pinned("first", true)).unwrap();
    Index::<Pod>::apply(&books, holder);
    let second: Pod = serde_json::from_value(pinned("second", false)).unwrap();
    let demand = pod::demand(&second, books.settings()).unwrap();
    let names = [&many[..], &["a".to_owned(), "unknown".to_owned()]].concat();
    let found = books.pinned(&books.snapshot(), &pod::uid(&second), &demand, &names);
    assert_eq!(found, ["a"]);
}

#[test]
fn a_refusal_that_names_holders_hung_with_the_watch_of_pods() {
    let books = Arc::new(pinned_books());
    let holder = || serde_json::from_value::<Pod>(pinned("first", true)).unwrap();
    Index::<Pod>::reset(&*books, vec![holder()]);
    let (done_tx, done) = std::sync::mpsc::channel();
    let (watch, watched) = (done_tx.clone(), Arc::clone(&books));
    std::thread::spawn(move || {
        for _ in 0..20_000 {
            Index::apply(&*watched, holder());
        }
        watch.send(())
    });
    std::thread::spawn(move || {
        let call = call(&pinned("second", false), &json!(["a"]));
        for _ in 0..20_000 {
            filter(&books, &call, 64);
        }
        done_tx.send(())
    });
    for _ in 0..2 {
        let ended = done.recv_timeout(std::time::Duration::from_mins(1));
        ended.expect("neither waits for the other");
    }
}
