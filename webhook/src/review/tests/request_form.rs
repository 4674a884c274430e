//! Requests as annotations: what the pod has afterwards, and what a copy of it asks for.

use serde_json::{Value, json};

use super::*;
use crate::settings::RequestForm;

const REQUEST: &str = "aliquot.dev/request";

fn settings(form: RequestForm) -> Settings {
    Settings {
        request_as: form,
        ..Settings::default()
    }
}

fn annotated(pod: &Value, request: &Value) -> Value {
    let mut pod = pod.clone();
    pod["metadata"]["annotations"] = json!({REQUEST: request.to_string()});
    pod
}

fn resources(pod: &Value, pointer: &str) -> Value {
    pod.pointer(pointer).unwrap()["resources"].clone()
}

/// The request that the admitted pod has as an annotation.
fn request(pod: &Value) -> Value {
    let text = &pod["metadata"]["annotations"][REQUEST];
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}

fn both(list: &Value) -> Value {
    json!({"limits": list, "requests": list})
}

#[test]
fn moves_amounts_of_all_containers_to_annotation() {
    let mut before = pod(&json!([
        container(
            "main",
            &json!({GPU: "1", MEM: "3k", CORES: "30", "cpu": "1"})
        ),
        container("mig", &json!({"nvidia.com/mig-1g.5gb": "1", CORES: "50"})),
        container("side", &json!({"cpu": "1"})),
    ]));
    let mut sidecar = container("proxy", &json!({PERCENT: "10", PRIORITY: "0"}));
    sidecar["restartPolicy"] = json!("Always");
    before["spec"]["initContainers"] = json!([container("warm-up", &json!({GPU: "2"})), sidecar]);
    let (after, ..) = admit(&before, &settings(RequestForm::Annotation));
    for (pointer, left) in [
        ("/spec/initContainers/0", json!({GPU: "2"})),
        ("/spec/initContainers/1", json!({GPU: "1"})),
        ("/spec/containers/0", json!({GPU: "1", "cpu": "1"})),
        ("/spec/containers/1", json!({"nvidia.com/mig-1g.5gb": "1"})),
        ("/spec/containers/2", json!({"cpu": "1"})),
    ] {
        assert_eq!(resources(&after, pointer), both(&left), "{pointer}");
    }
    let text = r#"{"v":1,"containers":{"main":{"memory":3000,"cores":30},"mig":{"cores":50},"proxy":{"percentage":10,"cores":0},"warm-up":{"memory":5000,"cores":0}},"priority":0}"#;
    assert_eq!(after["metadata"]["annotations"][REQUEST], text);
    let (_, patch, _) = admit(
        &asking(&json!({"cpu": "1"})),
        &settings(RequestForm::Annotation),
    );
    assert!(patch.is_empty(), "{patch}");
}

#[test]
fn priority_hides_annotated_requests_from_autoscalers() {
    let mut before = asking(&json!({GPU: "1", MEM: "3000"}));
    before["spec"]["initContainers"] = json!([container("warm-up", &json!({GPU: "1"}))]);
    let settings = Settings {
        retain_priority: true,
        ..settings(RequestForm::Annotation)
    };
    let (after, ..) = admit(&before, &settings);
    for (pointer, left) in [
        ("/spec/initContainers/0", json!({GPU: "1"})),
        ("/spec/containers/0", json!({GPU: "1", PRIORITY: "1"})),
    ] {
        assert_eq!(resources(&after, pointer), both(&left), "{pointer}");
    }
    assert_eq!(request(&after)["priority"], 1);
}

#[test]
fn restores_resources_of_copied_pod_in_that_form() {
    let amounts = json!({"main": {"percentage": 50, "cores": 30}});
    let copied = annotated(
        &asking(&json!({GPU: "1"})),
        &json!({"v": 1, "containers": amounts, "priority": 0}),
    );
    let (after, ..) = admit(&copied, &settings(RequestForm::Resources));
    let expected = json!({GPU: "1", PERCENT: "50", CORES: "30", PRIORITY: "0"});
    assert_eq!(resources(&after, "/spec/containers/0"), both(&expected));
    assert_eq!(after["metadata"]["annotations"], json!({}));
}

#[test]
fn adds_container_that_another_webhook_injected() {
    let first = asking(&json!({GPU: "1", MEM: "3k", CORES: "0"}));
    let (mut between, ..) = admit(&first, &settings(RequestForm::Annotation));
    let injected = container("injected", &json!({GPU: "1", MEM: "1k", CORES: "5"}));
    let all = between["spec"]["containers"].as_array_mut().unwrap();
    all.push(injected);
    let expected = json!({
        "main": {"memory": 3000, "cores": 0}, "injected": {"memory": 1000, "cores": 5},
    });
    let (after, ..) = admit(&between, &settings(RequestForm::Annotation));
    assert_eq!(request(&after)["containers"], expected);
}
