//! Whether the chart's admission policies and their bindings are as the chart wrote them. One that is
//! missing, narrowed or only audits refuses too little, and nothing else would show it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::pod_client::{CallError, DEADLINE};
use crate::ticks::Ticks;

const INTERVAL: Duration = Duration::from_secs(30);
/// Policies that could not be compared for so many intervals, five minutes, count as changed.
const FAILURES: u32 = 10;
/// The kinds, with the API's names for them.
const KINDS: [(&str, &str); 2] = [
    ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
    (
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
    ),
];

/// Why they could not be compared.
#[derive(Debug, Error)]
pub enum CompareError {
    #[error("cannot read what the chart wrote, {}: {source}", .path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is not the chart's list of its policies: {source}", .path.display())]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("cannot list {plural}: {source}")]
    List {
        plural: &'static str,
        source: CallError,
    },
}

/// One of them as the chart wrote it.
#[derive(Debug, Deserialize)]
struct Written {
    kind: String,
    name: String,
    spec: Value,
}

/// Whether each of them, as `kind/name`, has changed, as it was compared last. Clones share that.
#[derive(Clone, Debug, Default)]
pub struct Compared(Arc<Mutex<Last>>);

#[derive(Debug, Default)]
struct Last {
    changed: BTreeMap<String, bool>,
    /// Comparisons since then that failed.
    failures: u32,
}

impl Last {
    fn record(&mut self, found: Result<BTreeMap<String, bool>, CompareError>) {
        match found {
            Ok(changed) => {
                *self = Self {
                    changed,
                    failures: 0,
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot compare the admission policies");
                self.failures = self.failures.saturating_add(1);
                if self.failures >= FAILURES {
                    // One that never could compare knows no names.
                    if self.changed.is_empty() {
                        self.changed = KINDS.map(|(kind, _)| (kind.to_owned(), false)).into();
                    }
                    self.changed
                        .values_mut()
                        .for_each(|changed| *changed = true);
                }
            }
        }
    }
}

impl Compared {
    pub fn changed(&self) -> BTreeMap<String, bool> {
        self.0.lock().changed.clone()
    }

    /// Compares again and again; `written` is the chart's list.
    pub async fn run(self, client: Client, written: PathBuf, stop: CancellationToken) {
        let mut ticks = Ticks::every(INTERVAL, &stop);
        while ticks.next().await {
            let found = changed(&client, &written).await;
            self.0.lock().record(found);
        }
    }
}

/// Whether each policy and binding of the chart's list is missing or another one in the cluster.
pub async fn changed(
    client: &Client,
    written: &Path,
) -> Result<BTreeMap<String, bool>, CompareError> {
    let text = std::fs::read(written).map_err(|source| CompareError::Read {
        path: written.to_owned(),
        source,
    })?;
    let all: Vec<Written> =
        serde_json::from_slice(&text).map_err(|source| CompareError::Parse {
            path: written.to_owned(),
            source,
        })?;
    let mut specs = BTreeMap::new();
    for (kind, plural) in KINDS {
        let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let list = timeout(DEADLINE, objects.list(&ListParams::default()))
            .await
            .map_err(CallError::from)
            .and_then(|list| Ok(list?))
            .map_err(|source| CompareError::List { plural, source })?;
        for mut object in list.items {
            let name = format!("{kind}/{}", object.name_any());
            specs.insert(name, object.data["spec"].take());
        }
    }
    let compared = all.into_iter().map(|one| {
        let name = format!("{}/{}", one.kind, one.name);
        let spec = specs.get(&name);
        let stays = spec.is_some_and(|spec| is_same(&one.spec, spec));
        (name, !stays)
    });
    Ok(compared.collect())
}

/// Whether the API server has what the chart wrote, and beside it only its own defaults.
fn is_same(written: &Value, found: &Value) -> bool {
    match (written, found) {
        (Value::Object(written), Value::Object(found)) => {
            let has = |(key, value): (&String, &Value)| {
                found.get(key).is_some_and(|found| is_same(value, found))
            };
            let mut more = found.iter().filter(|(key, _)| !written.contains_key(*key));
            written.iter().all(has) && more.all(|(key, value)| is_default(key, value))
        }
        (Value::Array(written), Value::Array(found)) => {
            let mut pairs = written.iter().zip(found);
            written.len() == found.len() && pairs.all(|(written, found)| is_same(written, found))
        }
        _ => written == found,
    }
}

/// What the API server adds, which narrows nothing.
fn is_default(key: &str, value: &Value) -> bool {
    match key {
        "matchPolicy" => value == "Equivalent",
        "namespaceSelector" | "objectSelector" => value.as_object().is_some_and(Map::is_empty),
        "scope" => value == "*",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn policies_that_nobody_can_compare_count_as_changed() {
        let fails = || CompareError::Read {
            path: "policies.json".into(),
            source: std::io::ErrorKind::PermissionDenied.into(),
        };
        let same = BTreeMap::from([("K/pods".to_owned(), false)]);
        let mut last = Last::default();
        last.record(Ok(same.clone()));
        for _ in 1..FAILURES {
            last.record(Err(fails()));
        }
        assert_eq!(last.changed, same);
        last.record(Err(fails()));
        assert!(last.changed["K/pods"]);
        last.record(Ok(same.clone()));
        assert_eq!(last.changed, same);

        let mut never = Last::default();
        for _ in 0..FAILURES {
            never.record(Err(fails()));
        }
        assert!(never.changed["ValidatingAdmissionPolicy"]);
    }

    #[test]
    fn defaults_are_no_change_and_everything_else_is() {
        let written = json!({
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{"resources": ["pods"]}]},
            "validations": [{"expression": "true"}],
        });
        let check = |path: &str, key: &str, value: Value, expected: bool| {
            let mut found = written.clone();
            let constraints = &mut found["matchConstraints"];
            constraints["matchPolicy"] = json!("Equivalent");
            constraints["namespaceSelector"] = json!({});
            constraints["objectSelector"] = json!({});
            constraints["resourceRules"][0]["scope"] = json!("*");
            found.pointer_mut(path).unwrap()[key] = value;
            assert_eq!(is_same(&written, &found), expected, "{path} {key}");
        };
        let (constraints, rule) = ("/matchConstraints", "/matchConstraints/resourceRules/0");
        check("", "failurePolicy", json!("Fail"), true);
        check("", "failurePolicy", json!("Ignore"), false);
        check("", "matchConditions", json!([]), false);
        check("", "validations", json!([]), false);
        check("/validations/0", "expression", json!("1 == 1"), false);
        check(constraints, "matchPolicy", json!("Exact"), false);
        check(constraints, "excludeResourceRules", json!([{}]), false);
        let selector = json!({"matchLabels": {"a": "b"}});
        check(constraints, "namespaceSelector", selector.clone(), false);
        check(constraints, "objectSelector", selector, false);
        check(rule, "scope", json!("Cluster"), false);
        check(rule, "resources", json!(["pods", "nodes"]), false);
    }
}
