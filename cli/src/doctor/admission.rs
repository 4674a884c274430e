//! The checks of what happens to a pod when it is created.
//!
//! Fed by: [`Known`]. Must not: ask anybody.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::class;
use super::cluster::of;
use super::finding::{About, Finding};
use super::known::{Known, Trial, is_ready};

/// All of them.
pub(super) fn checks(known: &Known, about: &About) -> Vec<Finding> {
    let mut found = match &known.pods {
        Ok(pods) if is_off(pods) => vec![off(known, about)],
        _ => {
            let mut found = webhook(known, about);
            found.push(trial(known, about));
            found
        }
    };
    found.push(fences(known, about));
    found.extend(class::there(known, about));
    found
}

/// What the chart writes on the scheduler's pods where its values switch the webhook off.
const OFF: (&str, &str) = ("aliquot.dev/admission-webhook", "off");

/// Nobody is to be asked when a pod is created.
pub(super) fn is_off(pods: &[Pod]) -> bool {
    of(pods, "scheduler").any(|pod| {
        let all = pod.metadata.annotations.as_ref();
        all.and_then(|all| all.get(OFF.0))
            .is_some_and(|value| value == OFF.1)
    })
}

/// Our scheduler's name, which pods with a share have.
pub(super) fn scheduler(known: &Known) -> String {
    let named = known.config.as_ref().ok().and_then(|text| {
        let config: Value = serde_saphyr::from_str(text.as_ref()?).ok()?;
        let name = config["profiles"][0]["schedulerName"].as_str()?;
        Some(name.to_owned())
    });
    named.unwrap_or_else(|| "aliquot-scheduler".to_owned())
}

/// It was switched off by whoever installed us: what nobody does then.
fn off(known: &Known, about: &About) -> Finding {
    let check = "webhook";
    if matches!(known.hook, Ok(Some(_))) {
        return about.problem(
            check,
            "switched off by the chart's values, and its configuration is still there: the API server asks it about each GPU pod, and refuses the pod",
            "kubectl delete mutatingwebhookconfiguration aliquot-webhook",
        );
    }
    let name = scheduler(known);
    about.warning(
        check,
        format!("switched off by the chart's values: nobody gives a GPU pod the scheduler {name} and its defaults, refuses what cannot be meant or reaches around a share (privileged, host paths, a node named by the pod), or takes NVIDIA_VISIBLE_DEVICES out of pods without one"),
        &format!("scheduler.admissionWebhook.enabled=true; without it all who may create pods must be trusted, and write schedulerName: {name} and their resources themselves"),
    )
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
            let count = format!("webhook pods that are ready: {ready} of {all}");
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
    let expected = scheduler(known);
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
