//! For any pod: a review of the patched pod changes nothing, the patch touches
//! only what we own, and what the user wrote is kept.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use aliquot_core::request::{self, BareGpu, Resource};
use aliquot_core::request_annotation::REQUEST;
use aliquot_core::{Demand, Mib, Percent};
use aliquot_k8s::pod as k8s;

use super::*;
use crate::review::request::RESERVED;
use crate::settings::RequestForm;

fn quantity() -> impl Strategy<Value = String> + Clone {
    prop_oneof![
        Just("0".to_owned()),
        (0u32..120).prop_map(|number| number.to_string()),
        (1u32..90).prop_map(|number| format!("{number}k")),
        Just("1Gi".to_owned()),
        Just("-1".to_owned()),
        "[0-9]{0,3}[a-zA-Z.-]{0,2}",
    ]
}

fn resources() -> impl Strategy<Value = Value> + Clone {
    let name = prop::sample::select(vec![
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/priority",
        "cpu",
    ]);
    let list = prop::collection::btree_map(name, quantity(), 0..4);
    (
        list.clone(),
        prop::option::weighted(0.1, list),
        any::<bool>(),
    )
        .prop_map(|(limits, requests, copied)| {
            let requests = requests.or_else(|| copied.then(|| limits.clone()));
            json!({"limits": limits, "requests": requests, "claims": [], "future": {"deep": [1]}})
        })
}

/// A request as an annotation, which may be invalid.
fn annotation() -> impl Strategy<Value = Option<String>> {
    let name = prop::sample::select(vec!["init0", "app0", "app1", "other"]);
    let key = prop::sample::select(vec!["memory", "percentage", "cores"]);
    let amounts = prop::collection::btree_map(key, 0u32..102, 0..3);
    let containers = prop::collection::btree_map(name, amounts, 0..3);
    let whole = (containers, prop::option::of(0u8..2)).prop_map(|(containers, priority)| {
        json!({"v": 1, "containers": containers, "priority": priority}).to_string()
    });
    prop::option::of(prop_oneof![9 => whole, 1 => Just("{".to_owned())])
}

fn any_pod() -> impl Strategy<Value = Value> {
    let containers = prop::collection::vec(resources(), 0..3);
    let scheduler = prop::option::of(prop::sample::select(vec![
        "",
        "default-scheduler",
        "aliquot-scheduler",
        "hami-scheduler",
        "volcano",
    ]));
    let class = prop::option::of(prop::sample::select(vec!["nvidia", "kata"]));
    let lists = (containers.clone(), containers);
    let annotations = (any::<bool>(), annotation());
    (lists, scheduler, annotations, class).prop_map(|((init, app), scheduler, (reserved, request), class)| {
        let named = |prefix: &str, list: Vec<Value>| -> Vec<Value> {
            let container = |(index, resources): (usize, Value)| {
                json!({"name": format!("{prefix}{index}"), "resources": resources, "later": true})
            };
            list.into_iter().enumerate().map(container).collect()
        };
        let mut annotations = Map::new();
        if reserved {
            annotations.insert(RESERVED[0].to_owned(), json!("{}"));
        }
        annotations.extend(request.map(|text| (REQUEST.to_owned(), Value::String(text))));
        json!({
            "metadata": {"annotations": annotations},
            "spec": {
                "initContainers": named("init", init),
                "containers": named("app", app),
                "schedulerName": scheduler,
                "runtimeClassName": class,
                "aFieldOfKubernetes2": {"kept": [1.5, null]},
            },
        })
    })
}

fn any_settings() -> impl Strategy<Value = Settings> {
    (
        0u32..3,
        // Of a default below, a second review would warn as of a pod's own amount.
        prop_oneof![Just(0u64), 64u64..9000],
        0u32..=100,
        any::<bool>(),
        any::<bool>(),
        prop::sample::select(RequestForm::ALL.to_vec()),
    )
        .prop_map(|(count, memory, cores, whole, class, form)| {
            let mut settings = Settings {
                request_as: form,
                ..Settings::default()
            };
            settings.defaults.count = count;
            settings.defaults.memory = Mib(memory);
            settings.defaults.cores = Percent(cores);
            settings.defaults.bare_gpu = if whole {
                BareGpu::Whole
            } else {
                BareGpu::Defaults
            };
            settings.runtime_class = class.then(|| "nvidia".to_owned());
            settings
        })
}

/// Takes out everything that the webhook owns.
fn without_ours(pod: &Value) -> Value {
    let mut pod = pod.clone();
    let spec = pod["spec"].as_object_mut().unwrap();
    spec.remove("schedulerName");
    spec.remove("runtimeClassName");
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().unwrap() {
            // A container without a GPU in a pod with one.
            container.as_object_mut().unwrap().remove("env");
            for side in ["limits", "requests"] {
                let ours = |name: &str| name.starts_with("nvidia.com/");
                let of_side = &mut container["resources"][side];
                if let Some(values) = of_side.as_object_mut() {
                    values.retain(|name, _| !ours(name));
                }
                if of_side.is_null() {
                    *of_side = json!({});
                }
            }
        }
    }
    let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.retain(|name, _| !name.starts_with("aliquot.dev/"));
    pod
}

/// The pod reviewed in this form; `None` if it is refused.
fn in_form(pod: &Value, form: RequestForm, settings: &Settings) -> Option<Value> {
    let settings = Settings {
        request_as: form,
        ..settings.clone()
    };
    match review(&create(pod, "default"), &settings) {
        Verdict::Allow { patch, .. } => {
            let mut patched = pod.clone();
            json_patch::patch(&mut patched, &patch).unwrap();
            Some(patched)
        }
        Verdict::Deny(_) => None,
    }
}

/// What scheduler and ledger read of it.
fn demand(pod: &Value, settings: &Settings) -> Demand {
    let reading = k8s::Settings {
        names: settings.names.clone(),
        extra: settings.extra.clone(),
        defaults: settings.defaults,
        ..k8s::Settings::default()
    };
    k8s::demand(&serde_json::from_value(pod.clone()).unwrap(), &reading).unwrap()
}

/// The amounts that its containers name in their resources; beside a count of 0 they are 0, too.
fn amounts(pod: &Value, settings: &Settings) -> usize {
    let of_container = |container: &Value| {
        let lists = ["limits", "requests"].map(|list| container["resources"][list].clone());
        let count = |list: &Value| list.get(settings.names.of(Resource::Gpu)).cloned();
        let count = lists.iter().find_map(count);
        if count.is_some_and(|text| request::count(text.as_str().unwrap_or_default()) == Ok(0)) {
            return 0;
        }
        let amounts = Resource::ALL
            .into_iter()
            .filter(|&one| one != Resource::Gpu);
        let named = |name: Resource| {
            let all = lists
                .iter()
                .filter(|list| list.get(settings.names.of(name)).is_some());
            all.count()
        };
        amounts.map(named).sum::<usize>()
    };
    let lists = ["initContainers", "containers"];
    let all = lists
        .iter()
        .flat_map(|list| pod["spec"][*list].as_array().unwrap());
    all.map(of_container).sum()
}

proptest! {
    // Of pods made like this, most are refused; these are not counted as cases.
    #![proptest_config(ProptestConfig { max_global_rejects: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn both_forms_have_the_same_demand(pod in any_pod(), settings in any_settings()) {
        let [resources, annotation] = RequestForm::ALL.map(|form| in_form(&pod, form, &settings));
        prop_assert_eq!(resources.is_some(), annotation.is_some());
        let (Some(resources), Some(annotation)) = (resources, annotation) else {
            return Err(TestCaseError::reject("refused in both forms"));
        };
        if pod["spec"]["schedulerName"] == "volcano" {
            prop_assert_eq!(resources, annotation);
            return Ok(());
        }
        let expected = demand(&resources, &settings);
        prop_assert_eq!(&demand(&annotation, &settings), &expected);
        prop_assert_eq!(amounts(&annotation, &settings), 0);
        if expected.requests_gpu() {
            prop_assert_eq!(resources["metadata"]["annotations"].get(REQUEST), None);
        }
        // A copy of an admitted pod asks for the same, whichever form applies to it.
        for (copied, form) in [(&resources, RequestForm::Annotation), (&annotation, RequestForm::Resources)] {
            let again = in_form(copied, form, &settings);
            prop_assert!(again.is_some(), "{}", copied);
            prop_assert_eq!(&demand(&again.unwrap_or_default(), &settings), &expected);
        }
    }

    #[test]
    fn patch_is_idempotent_and_keeps_written_values(
        pod in any_pod(),
        settings in any_settings(),
    ) {
        let first = review(&create(&pod, "default"), &settings);
        let Verdict::Allow { patch, warnings: before } = first else {
            return Err(TestCaseError::reject("refused"));
        };
        let mut patched = pod.clone();
        json_patch::patch(&mut patched, &patch).unwrap();
        prop_assert_eq!(without_ours(&pod), without_ours(&patched));

        let again = review(&create(&patched, "default"), &settings);
        let Verdict::Allow { patch, warnings } = again else {
            return Err(TestCaseError::fail(format!("{again:?}")));
        };
        prop_assert!(patch.is_empty(), "{}", patch);
        // What is as it was written is warned about again.
        let is_known = |line: &String| before.contains(line);
        prop_assert!(warnings.iter().all(is_known), "{:?}", warnings);

        for list in ["initContainers", "containers"] {
            let (before, after) = (&pod["spec"][list], &patched["spec"][list]);
            for (before, after) in before.as_array().unwrap().iter().zip(after.as_array().unwrap()) {
                for resource in Resource::ALL {
                    let name = settings.names.of(resource);
                    let written = before["resources"]["limits"].get(name);
                    let moves = settings.request_as == RequestForm::Annotation;
                    if moves && resource != Resource::Gpu {
                        continue;
                    }
                    if let Some(written) = written {
                        prop_assert_eq!(Some(written), after["resources"]["limits"].get(name));
                    }
                }
            }
        }
    }
}
