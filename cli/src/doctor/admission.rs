//! The checks of what happens to a pod when it is created.
//!
//! Fed by: [`Known`]. Must not: ask anybody.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;
use serde_json::Value;

use super::cluster::of;
use super::finding::{About, Finding};
use super::known::{Known, Trial, is_ready};

/// All of them.
pub(super) fn checks(known: &Known, about: &About) -> Vec<Finding> {
    let mut found = webhook(known, about);
    found.push(trial(known, about));
    found.push(fences(known, about));
    found
}

/// Its configuration is there, and somebody answers.
fn webhook(known: &Known, about: &About) -> Vec<Finding> {
    let check = "webhook";
    let mut found = Vec::new();
    match &known.hook {
        Err(why) => found.push(about.unknown(check, why)),
        Ok(None) => found.push(about.problem(
            check,
            "there is no MutatingWebhookConfiguration aliquot-webhook: pods reach the default scheduler unchanged",
            "the webhook makes it itself: look whether its pods run, and at their logs",
        )),
        Ok(Some(hook)) => {
            let hooks = hook.webhooks.as_deref().unwrap_or_default();
            let bundle = |one: &&MutatingWebhook| {
                one.client_config.ca_bundle.as_ref().is_none_or(|bundle| bundle.0.is_empty())
            };
            let open = |one: &&MutatingWebhook| {
                one.failure_policy.as_deref() == Some("Ignore")
            };
            if hooks.iter().any(|one| bundle(&one)) {
                let what = "the configuration has no CA: the API server refuses every GPU pod";
                let todo = "the webhook writes it: look at the logs of its pods";
                found.push(about.problem(check, what, todo));
            } else if hooks.iter().any(|one| open(&one) && one.name == "pods.aliquot.dev") {
                let what = "failurePolicy is Ignore: GPU pods pass unchanged while the webhook is away";
                let todo = "somebody changed it; the webhook puts it back when it runs";
                found.push(about.warning(check, what, todo));
            } else {
                found.push(about.ok(check, "its configuration is there, with a CA"));
            }
        }
    }
    let check = "webhook-pods";
    found.push(match &known.pods {
        Err(why) => about.unknown(check, why),
        Ok(pods) => {
            let all = of(pods, "webhook").count();
            let ready = of(pods, "webhook").filter(|pod| is_ready(pod)).count();
            let count = format!("{ready} of {all} webhook pods are ready");
            match ready {
                0 => about.problem(
                    check,
                    count,
                    "kubectl logs of them; no GPU pod can be created meanwhile",
                ),
                1 => about.warning(
                    check,
                    count,
                    "webhook.replicas=2: GPU pods are refused while the only one restarts",
                ),
                _ => about.ok(check, count),
            }
        }
    });
    found
}

/// A pod that asks for a GPU goes through it.
fn trial(known: &Known, about: &About) -> Finding {
    let check = "webhook-answers";
    let expected = known.config.as_ref().ok().and_then(|text| {
        let config: Value = serde_saphyr::from_str(text.as_ref()?).ok()?;
        let name = config["profiles"][0]["schedulerName"].as_str()?;
        Some(name.to_owned())
    });
    let expected = expected.unwrap_or_else(|| "aliquot-scheduler".to_owned());
    match &known.trial {
        Err(why) => about.unknown(check, why),
        Ok(Trial::NoAnswer(said)) => about.problem(
            check,
            format!("a GPU pod is refused: {said}"),
            "the API server must reach the Service aliquot-webhook: its endpoints, network policies, and the port 8443 from the control plane",
        ),
        Ok(Trial::Admitted(scheduler)) if *scheduler == expected => {
            about.ok(check, format!("a GPU pod is given the scheduler {scheduler}"))
        }
        Ok(Trial::Admitted(scheduler)) => about.problem(
            check,
            format!("a GPU pod keeps the scheduler {scheduler}: it never gets a share"),
            "look whether its namespace has the label aliquot.dev/webhook: ignore or hami.io/webhook: ignore, and at --replace-scheduler",
        ),
    }
}

/// Nobody else can write allocations and inventories.
fn fences(known: &Known, about: &About) -> Finding {
    let check = "admission-policies";
    let all = match &known.fences {
        Err(why) => return about.unknown(check, why),
        Ok(all) => all,
    };
    let wanted = ["aliquot-allocations", "aliquot-inventories"];
    let missing: Vec<&str> = wanted
        .into_iter()
        .filter(|name| !all.iter().any(|there| there == name))
        .collect();
    if missing.is_empty() {
        return about.ok(check, "allocations and inventories are fenced");
    }
    about.warning(
        check,
        format!("no binding of the admission policies {}: who may write pods or nodes may write allocations or inventories", missing.join(", ")),
        "admissionPolicies.enabled=true",
    )
}
