//! Invalid values and helm's errors, and HAMi's values, which are accepted.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

use aliquot_chart::{NAMESPACE, chart, container, helm, one, rendered, texts, top};
use serde_json::Value;

#[test]
fn chart_of_a_checkout_demands_an_image_repository() {
    let checkout = ["template", "aliquot", &chart(), "-n", NAMESPACE];
    let output = helm(&checkout).unwrap();
    assert!(!output.succeeded);
    let sentence = "image.repository is empty, expected: the repository of an image that you built \
        (docs/guides/install.md), because only the chart of a release names an image of its own";
    assert!(output.err.contains(sentence), "{}", output.err);
}

/// The error must name the place and the valid values.
fn check(set: &str, place: &str, accepted: &str) {
    let error = rendered(&["--set", set]).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains(place), "{set}: {error}");
    assert!(error.contains(accepted), "{set}: {error}");
}

/// A value, the place that the error names, and what is accepted there. The schema refuses the first of them.
const WRONG: &str = r"
defaultMem=1 | at '' | 'defaultMem' not allowed
webhook.failurePolicy=x | at '/webhook' | 'failurePolicy' not allowed
webhook.pod.hostPID=true | at '/webhook/pod' | 'hostPID' not allowed
scheduler.replicas=two | /scheduler/replicas | want integer
scheduler.replicas=0 | /scheduler/replicas | minimum
scheduler.defaultMem=5Gi | /scheduler/defaultMem | want integer
scheduler.defaultCores=101 | /scheduler/defaultCores | 100
devicePlugin.deviceMemoryScaling=much | deviceMemoryScaling | '^[0-9]+([.][0-9]+)?$'
devicePlugin.sickPods=kill | sickPods | 'keep', 'evict', 'drain'
devicePlugin.stateDir=var | /devicePlugin/stateDir | '^/'
monitor.burstGraceSeconds.batch=soon | /monitor/burstGraceSeconds/batch | want integer
devicePlugin.tenantMay.disableControl={A b} | tenantMay/disableControl | pattern
enabled=maybe | at '/enabled' | want boolean
enabled=false | enabled is false | expected: true or nothing
scheduler.kubeScheduler.enabled=false | scheduler.kubeScheduler.enabled | scheduler.extender.tlsSecret
scheduler.kubeScheduler.enabled=false,scheduler.extender.tlsSecret=a | scheduler.kubeScheduler.enabled | scheduler.replicas: 1
devicePlugin.profiles.default=a,devicePlugin.profiles.configMap=b | devicePlugin.profiles has configMap | the name of a ConfigMap
";

#[test]
fn rejects_wrong_values_with_place_and_what_is_accepted() {
    for row in WRONG.trim().lines() {
        let [set, place, accepted] = *row.split(" | ").collect::<Vec<_>>() else {
            panic!("{row}");
        };
        check(set, place, accepted);
    }
    // helm parses a fraction after --set as a string.
    rendered(&["--set=devicePlugin.deviceMemoryScaling=1.5,enabled=true"]).unwrap();
}

#[test]
fn rejects_variables_that_the_chart_sets_itself() {
    let set = |name: &str| {
        format!(
            "devicePlugin.env[0].name=OWN,devicePlugin.env[0].value=1,devicePlugin.env[1].name={name}"
        )
    };
    for name in ["NODE_NAME", "NVIDIA_VISIBLE_DEVICES"] {
        let place = format!("devicePlugin.env[1].name is \"{name}\", expected: another name");
        check(&set(name), &place, "(NODE_NAME, NVIDIA_VISIBLE_DEVICES, ");
    }
    let host = set("KUBERNETES_SERVICE_HOST");
    rendered(&["--set", &host]).unwrap();
    let place = "devicePlugin.env[1].name is \"KUBERNETES_SERVICE_HOST\"";
    let both = format!("apiServer.host=10.0.0.1,{host}");
    check(
        &both,
        place,
        "KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT)",
    );
}

#[test]
fn accepts_hami_values_with_same_meaning() {
    let file = top("tests/chart/values/hami.yaml");
    let file = file.to_str().unwrap();
    let objects = rendered(&["-f", file]).unwrap();
    let scheduler = one(&objects, "Deployment", "aliquot-scheduler");
    assert_eq!(scheduler.0["spec"]["replicas"], 1);
    let flags = texts(&container(scheduler, "scheduler")["args"]);
    for flag in ["--node-policy=binpack", "--gpu-policy=spread"] {
        assert!(flags.iter().any(|one| one == flag), "{flag}");
    }
    // HAMi's own images, arguments and permissions are not used.
    let text = format!("{objects:?}");
    for hamis in ["projecthami", "-v=4", "--debug", "certgen"] {
        assert!(!text.contains(hamis), "{hamis}");
    }
    let agent = one(&objects, "DaemonSet", "aliquot-device-plugin");
    assert_eq!(agent.pod().unwrap()["nodeSelector"]["gpu"], "on");
    let set = "--set=scheduler.forceOverwriteDefaultScheduler=false";
    let ours = rendered(&["-f", file, set]).unwrap();
    let webhook = one(&ours, "Deployment", "aliquot-webhook");
    let flags = texts(&container(webhook, "webhook")["args"]);
    assert!(
        flags
            .iter()
            .any(|flag| flag == "--replace-scheduler=hami-scheduler")
    );
}

/// The table of HAMi's keys matches the schema that accepts them.
#[test]
fn accepts_every_hami_key_with_a_notice() {
    let read = |file: &str| std::fs::read_to_string(top(file)).unwrap();
    let hami: Value = serde_saphyr::from_str(&read("charts/aliquot/files/hami.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&read("charts/aliquot/values.schema.json")).unwrap();
    let values: Value = serde_saphyr::from_str(&read("charts/aliquot/values.yaml")).unwrap();
    for group in ["moved", "unused"] {
        for path in hami[group].as_object().unwrap().keys() {
            let inside = path.replace('.', "/properties/");
            let place = schema.pointer(&format!("/properties/{inside}"));
            assert!(place.is_some(), "{path} is not in the schema");
            let ours = values.pointer(&format!("/{}", path.replace('.', "/")));
            assert_eq!(ours, None, "{path}");
        }
    }
    check_schema_of_values(&schema, &values, "");
}

/// Checks that each value with a default has a type in the schema.
fn check_schema_of_values(schema: &Value, values: &Value, path: &str) {
    let Some(known) = schema["properties"].as_object() else {
        return;
    };
    for (key, value) in values.as_object().unwrap() {
        let path = format!("{path}.{key}");
        let there = known
            .get(key)
            .unwrap_or_else(|| panic!("{path} has no schema"));
        check_schema_of_values(there, value, &path);
    }
}
