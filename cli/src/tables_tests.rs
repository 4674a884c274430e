//! Tables as they are printed, from a cluster of two nodes; and the errors of a scheduler.

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::explain::{PodAnswer, RefusalHistory, SchedulingCondition};
use aliquot_core::inventory::INVENTORY;
use aliquot_core::score::Policies;
use aliquot_core::top::TopAnswer;
use aliquot_core::{Burst, Mib, Percent};
use aliquot_k8s::pod::Settings;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::access::Access;
use crate::agents::Answers;
use crate::explain::what_if::what_if;
use crate::explain::{self, ask};
use crate::top::tables::{self, PodColumns};
use crate::top::{Devices, SortBy, add_usage, pods_with_allocations, top_of};
use crate::usage::Usage;

const ALL: PodColumns = PodColumns {
    namespace: true,
    wide: true,
};
const ONE_NAMESPACE: PodColumns = PodColumns {
    namespace: false,
    wide: false,
};

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn node(name: &str, health: &str) -> Node {
    let inventory = json!({"v": 1, "reads": [1], "gpus": [{
        "uuid": format!("GPU-{name}"), "index": 0, "model": "A100", "memory": 80000, "scaled": 80000,
        "cores": 100, "replicas": 10, "mode": "vgpu", "resource": "nvidia.com/gpu",
        "health": health,
    }]});
    from(json!({"metadata": {"name": name, "annotations": {INVENTORY: inventory.to_string()}}}))
}

fn holder() -> Pod {
    let allocation = json!({"v": 1, "node": "n1", "priority": 1, "containers": {"main": [
        {"resource": "nvidia.com/gpu", "gpu": "GPU-n1", "memory": 50000, "cores": 30}]}});
    from(json!({
        "metadata": {"name": "holder", "namespace": "d", "uid": "h",
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "t",
                "controller": true}],
            "annotations": {ALLOCATION: allocation.to_string()}},
        "spec": {"nodeName": "n1", "schedulerName": "aliquot-scheduler", "containers": [
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }))
}

fn cluster() -> [Node; 3] {
    [
        node("n1", "ok"),
        node("n2", "xid 79"),
        from(json!({"metadata": {"name": "cpu"}})),
    ]
}

#[test]
fn top_names_pod_with_unreadable_allocation() {
    let mut spoilt = holder();
    let annotations = spoilt.metadata.annotations.get_or_insert_default();
    annotations.insert(ALLOCATION.to_owned(), "{".to_owned());
    let top = top_of(&cluster(), &[spoilt]);
    let line = "\nn1 counts as full: the allocation of d/holder cannot be read; delete the pod\n";
    for table in [nodes(&top), gpus(&top)] {
        assert!(table.ends_with(line), "{table}");
    }
}

#[test]
fn top_computes_with_the_schedulers_default_cores() {
    let labels = json!({"app.kubernetes.io/part-of": "aliquot",
        "app.kubernetes.io/component": "scheduler"});
    let spec = json!({"containers": [{"name": "s", "args": ["--default-cores=20"]}]});
    let scheduler = json!({"metadata": {"labels": labels}, "spec": spec});
    let top = top_of(&cluster(), &[serde_json::from_value(scheduler).unwrap()]);
    let wide = tables::gpus(&top, &Usage::default(), SortBy::Name, true);
    assert!(wide.contains("WITH 20 CORES"), "{wide}");
}

#[test]
fn top_names_gpus_with_memory_that_no_share_has() {
    let check = |field: &str, value: Value, line: &str| {
        let mut node = node("n1", "ok");
        let annotations = node.metadata.annotations.as_mut().unwrap();
        let inventory = annotations.get_mut(INVENTORY).unwrap();
        let mut known: Value = serde_json::from_str(inventory).unwrap();
        known[field] = value;
        *inventory = known.to_string();
        let top = top_of(&[node], &[]);
        for table in [nodes(&top), gpus(&top)] {
            assert!(table.ends_with(line), "{table}");
        }
    };
    check(
        "unmeasured",
        json!(["GPU-n1"]),
        "\nn1: the driver does not report the memory of processes on GPU-n1; the limiter enforces limits, but the host charges nothing beyond its count, and kills nobody\n",
    );
    check(
        "unmanaged",
        json!({"GPU-n1": 60_000}),
        "\nn1: processes outside every share hold 60000 MiB of GPU-n1\n",
    );
    assert!(nodes(&top_of(&cluster(), &[])).ends_with("-\n"));
}

fn nodes(top: &TopAnswer) -> String {
    tables::nodes(&top.nodes, &Usage::default(), SortBy::Name, false)
}

fn gpus(top: &TopAnswer) -> String {
    tables::gpus(top, &Usage::default(), SortBy::Name, false)
}

/// What the monitor of n1 measures: the pod `holder` waited for half of the time. That of n2 does not answer.
fn usage() -> Usage {
    let answer = json!({
        "node": "n1",
        "taken_at": 1_790_000_000,
        "gpus": [{"gpu": "GPU-n1", "memory": 40960, "sm": 31, "temperature": 41, "power": 250}],
        "shares": [{"gpu": "GPU-n1", "device": "GPU-n1", "namespace": "d", "pod": "holder",
            "container": "main", "limit": 50000, "memory": 40000, "sm": 30, "throttled": 50,
            "processes": 2, "peak": {"memory": 40000, "sm": 30}}],
    });
    Usage::read(Answers {
        texts: vec![("n1".into(), answer.to_string())],
        missing: [("n2".into(), "connection refused".to_owned())].into(),
    })
}

#[test]
fn ts_14_top_shows_used_beside_allocated_and_replicas_by_peaks() {
    let (objects, pods) = (cluster(), [holder()]);
    let top = top_of(&objects, &pods);
    assert_eq!(
        tables::nodes(&top.nodes, &usage(), SortBy::Name, false),
        "NODE  GPUS  CLOSED  SHARES  MIB          USED   CORES   SM %  THROTTLED  LARGEST MIB\n\
         n1    1     0       1/10    50000/80000  40960  30/100  31    1          30000\n\
         n2    1     1       0/10    0/80000      -      0/100   -     -          -\n"
    );
    assert_eq!(
        tables::gpus(&top, &usage(), SortBy::Name, false),
        "NODE  GPU  MODEL  MODE  SHARES  MIB          USED   CORES   SM %  THROTTLED  LARGEST MIB  STATE\n\
         n1    0    A100   vgpu  1/10    50000/80000  40960  30/100  31    1          30000        ok\n\
         n2    0    A100   vgpu  0/10    0/80000      -      0/100   -     -          -            CardNotHealth\n"
    );
    let wide = tables::gpus(&top, &usage(), SortBy::Name, true);
    let mut lines = wide
        .lines()
        .map(|line| line.split_once("STATE").or_else(|| line.split_once("ok")));
    let mut wide = || lines.next().flatten().map(|(_, wide)| wide.trim());
    assert_eq!(
        [wide(), wide()],
        [
            Some(
                "PODS  OWNERS    PROCESSES  C   W    REPLICAS  UUID    ORPHANED MIB  WITH 0 CORES  RESOURCE"
            ),
            Some(
                "1     d/holder  2          41  250  2         GPU-n1  0             30000         nvidia.com/gpu"
            ),
        ]
    );
    let devices = Devices::new(&top.nodes);
    let mut pods = pods_with_allocations(&pods, &Settings::default());
    add_usage(&mut pods, &usage(), &devices);
    assert_eq!(
        tables::pods(&pods, &devices, SortBy::Name, ONE_NAMESPACE),
        "POD     NODE  GPU  SHARES  MIB    USED   CORES  SM %  THROTTLED  OWNER\n\
         holder  n1    0    1       50000  40000  30     30    50 %       Job/train\n"
    );
}

/// The clients of an MPS daemon are the processes of its shares.
#[test]
fn mps_14_shows_clients_and_memory_by_device_and_pod() {
    let (objects, pods) = (cluster(), [holder()]);
    let top = top_of(&objects, &pods);
    let gpus = tables::gpus(&top, &usage(), SortBy::Name, true);
    let shown = gpus.contains("OWNERS    PROCESSES") && gpus.contains("d/holder  2 ");
    assert!(shown, "{gpus}");
    let devices = Devices::new(&top.nodes);
    let mut pods = pods_with_allocations(&pods, &Settings::default());
    add_usage(&mut pods, &usage(), &devices);
    assert_eq!(
        tables::pods(&pods, &devices, SortBy::Name, ALL),
        "NAMESPACE  POD     NODE  GPU  SHARES  MIB    USED   CORES  SM %  THROTTLED  OWNER      PROCESSES  UUID\n\
         d          holder  n1    0    1       50000  40000  30     30    50 %       Job/train  2          GPU-n1\n"
    );
}

#[test]
fn top_shows_limit_above_what_a_pod_requested() {
    let mut pod = holder();
    let annotations = pod.metadata.annotations.as_mut().expect("an allocation");
    let allocation = annotations.get_mut(ALLOCATION).expect("an allocation");
    *allocation = allocation.replace(r#""cores":30"#, r#""cores":30,"burst":{"memory":70000}"#);
    let table = tables::pods(
        &pods_with_allocations(&[pod], &Settings::default()),
        &Devices::new(&top_of(&cluster(), &[]).nodes),
        SortBy::Name,
        ONE_NAMESPACE,
    );
    assert_eq!(
        table,
        "POD     NODE  GPU  SHARES  MIB            USED  CORES  SM %  THROTTLED  OWNER\n\
         holder  n1    0    1       50000 (70000)  -     30     -     -          Job/train\n"
    );
}

#[test]
fn top_places_pod_on_instance_of_dynamic_mig() {
    let zero = json!({"replicas": 0, "memory": 0, "cores": 0});
    let node = json!({"node": "n1", "closed": null, "gpus": [{
        "gpu": "GPU-a", "index": 3, "model": "A100", "mode": "mig", "closed": null, "pods": 1,
        "total": zero, "used": zero, "left": zero, "orphaned": zero, "largest": null,
        "largest_with_default_cores": null, "instances": [
            {"start": 4, "profile": "1g.10gb", "allocated": true, "uuid": "MIG-b"}],
    }]});
    let mut pod = holder();
    let annotations = pod.metadata.annotations.as_mut().expect("an allocation");
    let allocation = annotations.get_mut(ALLOCATION).expect("an allocation");
    *allocation = allocation.replace("GPU-n1", "GPU-a/1g.10gb@4");
    let table = tables::pods(
        &pods_with_allocations(&[pod], &Settings::default()),
        &Devices::new(&[from(node)]),
        SortBy::Name,
        ALL,
    );
    assert_eq!(
        table,
        "NAMESPACE  POD     NODE  GPU          SHARES  MIB    USED  CORES  SM %  THROTTLED  OWNER      PROCESSES  UUID\n\
         d          holder  n1    3 1g.10gb@4  1       50000  -     30     -     -          Job/train  -          MIG-b\n"
    );
}

#[test]
fn top_sorts_by_what_is_asked_and_unknown_last() {
    let objects = [node("n1", "ok"), node("n2", "ok"), node("n3", "ok")];
    let top = top_of(&objects, &[holder()]);
    let mut used = usage();
    let mut other = used.nodes[0].clone();
    other.node = "n3".into();
    other.shares.clear();
    other.gpus[0].gpu = "GPU-n3".into();
    other.gpus[0].memory = Some(Mib(80_000));
    other.gpus[0].sm = Some(Percent(1));
    used.nodes.push(other);
    let check = |by: SortBy, expected: [&str; 3]| {
        for table in [
            tables::nodes(&top.nodes, &used, by, false),
            tables::gpus(&top, &used, by, false),
        ] {
            let names = table
                .lines()
                .skip(1)
                .filter_map(|line| line.split(' ').next());
            assert_eq!(names.collect::<Vec<_>>(), expected, "{by:?}: {table}");
        }
    };
    check(SortBy::Name, ["n1", "n2", "n3"]);
    check(SortBy::Allocated, ["n1", "n2", "n3"]);
    check(SortBy::Memory, ["n3", "n1", "n2"]);
    check(SortBy::Sm, ["n1", "n3", "n2"]);
    check(SortBy::Throttled, ["n1", "n3", "n2"]);
}

#[test]
fn top_names_controller_of_pods() {
    let check = |owner: Value, labels: Value, expected: &str| {
        let mut pod = holder();
        pod.metadata.owner_references = from(json!([owner]));
        pod.metadata.labels = from(labels);
        let found = pods_with_allocations(&[pod], &Settings::default())
            .remove(0)
            .owner;
        assert_eq!(found.unwrap_or_default(), expected);
    };
    let owner = |kind: &str, name: &str, controls: bool| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "u", "controller": controls});
    let hash = json!({"pod-template-hash": "5d9"});
    check(owner("Job", "train", true), json!({}), "Job/train");
    check(owner("Job", "train", false), json!({}), "");
    check(owner("ReplicaSet", "web-5d9", true), hash, "Deployment/web");
    check(
        owner("ReplicaSet", "web-5d9", true),
        json!({}),
        "ReplicaSet/web-5d9",
    );
}

/// The scheduler's answer for a pod of 40,000 MiB.
fn waiting() -> PodAnswer {
    let mut nodes = cluster();
    nodes[2].spec = Some(from(json!({"unschedulable": true})));
    let pod: Pod = from(
        json!({"metadata": {"name": "p", "namespace": "d"}, "spec": {"containers": [
        {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "40000"}}}]}}),
    );
    let (pods, settings) = ([holder()], Settings::default());
    let asked = what_if(&nodes, &pods, &pod, &settings, Policies::default());
    let mut answer = asked.unwrap().answer;
    answer.head.refused = Some(RefusalHistory {
        times: 3,
        first_seconds_ago: 200.0,
        last_seconds_ago: 5.0,
        text: "GPU request fits none of 2 nodes: 1 CardNotHealth".to_owned(),
    });
    answer
}

#[test]
fn explains_waiting_pod_in_a_table() {
    let text = "d/p\n  \
         app container main requests 1 x (40000 MiB, 0 %)\n\
         Refused 3 times in 3m, last 5s ago: GPU request fits none of 2 nodes: 1 CardNotHealth\n\
         Nodes that fit now: 0 of 2 offered; reasons of the others: 1 CardNotHealth, 1 CardInsufficientMemory\n\
         \n\
         NODE  GPU  MODEL  FREE MIB  FREE CORES  FREE REPLICAS  NEEDS MIB  NEEDS CORES  ANSWER\n\
         n1    0    A100   30000     70          9              40000      0            CardInsufficientMemory\n";
    let last = "n2    0    A100   0         0           0              40000      0            CardNotHealth (xid 79)\n\
         cpu   -    -      -         -           -              -          -            1 NodeNotRegistered (not offered by kube-scheduler)\n";
    assert_eq!(explain::table(&waiting(), 20), format!("{text}{last}"));
    let more = "... and 2 more nodes; use --nodes to show more\n";
    assert_eq!(explain::table(&waiting(), 1), format!("{text}{more}"));
    let mut annotated = waiting();
    annotated.head.annotated = true;
    let first = "d/p (request in annotation aliquot.dev/request)\n  app container main requests";
    let shown = explain::table(&annotated, 20);
    assert!(shown.starts_with(first), "{shown}");
    let mut fits = waiting();
    fits.head.condition = Some(SchedulingCondition {
        reason: "Unschedulable".to_owned(),
        message: "0/3 nodes are available: 3 Insufficient cpu.".to_owned(),
    });
    for node in &mut fits.nodes {
        (node.fits, node.offered) = (node.node.as_str() != "cpu", node.node.as_str() == "n1");
    }
    let shown = explain::table(&fits, 20);
    let lines = "\nNot scheduled (Unschedulable): 0/3 nodes are available: 3 Insufficient cpu.\n\
         Nodes that fit now: 0 of 2 offered (n1); reasons of the others: 1 CardNotHealth, 1 CardInsufficientMemory\n\
         GPUs fit, but kube-scheduler does not offer: n2\n\nNODE";
    assert!(shown.contains(lines), "{shown}");
    let mut burst = waiting();
    burst.head.burst = Some(Burst {
        memory: Some(Mib(60_000)),
        cores: Some(Percent(80)),
        yields: false,
    });
    let line =
        "\n  each share may use up to 60000 MiB and 80 % compute while its GPU has it idle\n";
    let shown = explain::table(&burst, 20);
    assert!(shown.contains(line), "{shown}");
}

/// Serves one request, and returns how to reach it.
async fn server(status: &str, body: &str) -> Access {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 4096];
        let _ = connection.read(&mut bytes).await;
        connection.write_all(answer.as_bytes()).await.unwrap();
    });
    Access {
        scheduler: Some(url.parse().unwrap()),
        ..Access::default()
    }
}

#[tokio::test]
async fn reads_scheduler_answer_and_repeats_its_refusal() {
    let text = serde_json::to_string(&waiting()).unwrap();
    let access = server("200 OK", &text).await;
    let answer = ask(&access, "d", "p").await.unwrap();
    assert_eq!(explain::table(&answer, 20), explain::table(&waiting(), 20));

    let access = server("409 Conflict", "pod d/p asks for no GPU").await;
    let error = ask(&access, "d", "p").await.unwrap_err();
    assert_eq!(error.to_string(), "pod d/p asks for no GPU");

    let access = server("503 Service Unavailable", "no lease").await;
    let error = ask(&access, "d", "p").await.unwrap_err();
    assert!(
        error.to_string().ends_with(" is not ready: no lease"),
        "{error}"
    );
}
