//! The answer to a review: refusals, or a JSON patch and warnings; and how the steps of a review
//! collect them.

use std::fmt;

use json_patch::Patch;
use serde_json::{Map, Value};

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Every error found, at least one.
    Deny(Vec<Refusal>),
    Allow {
        /// The changes; empty when there are none.
        patch: Patch,
        /// Texts for the user, one line each.
        warnings: Vec<String>,
    },
}

/// One invalid value: its field, and what is expected there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The field, as in `spec.containers[0].resources.limits["nvidia.com/gpumem"]`.
    pub field: String,
    /// The value, what is wrong with it, and what is expected.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// What the steps of one review found and changed so far.
pub(crate) struct Findings {
    pub(crate) warnings: Vec<String>,
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) editor: PodEditor,
}

impl Findings {
    pub(crate) fn new(pod: &Value) -> Self {
        Self {
            warnings: Vec::new(),
            refusals: Vec::new(),
            editor: PodEditor(pod.clone()),
        }
    }

    /// The answer about the pod as it was `before`.
    pub(crate) fn verdict(self, before: &Value) -> Verdict {
        if self.refusals.is_empty() {
            Verdict::Allow {
                patch: json_patch::diff(before, self.editor.pod()),
                warnings: self.warnings,
            }
        } else {
            Verdict::Deny(self.refusals)
        }
    }
}

/// The pod as it will be.
pub(crate) struct PodEditor(Value);

impl PodEditor {
    pub(crate) fn pod(&self) -> &Value {
        &self.0
    }

    /// Sets the field at `tokens`, creating missing parent objects.
    pub(crate) fn set(&mut self, tokens: &[&str], value: Value) {
        let mut at = &mut self.0;
        for token in tokens {
            if at.is_null() {
                *at = Value::Object(Map::new());
            }
            let next = match at {
                Value::Object(fields) => Some(fields.entry(*token).or_insert(Value::Null)),
                other => item_mut(other, token),
            };
            let Some(next) = next else { return };
            at = next;
        }
        *at = value;
    }

    /// Removes the field at `tokens`; `true` when it was there.
    pub(crate) fn remove(&mut self, tokens: &[&str]) -> bool {
        let Some((last, above)) = tokens.split_last() else {
            return false;
        };
        let found = above.iter().try_fold(&mut self.0, |at, token| match at {
            Value::Object(fields) => fields.get_mut(*token),
            other => item_mut(other, token),
        });
        let parent = found.and_then(Value::as_object_mut);
        parent.is_some_and(|parent| parent.remove(*last).is_some())
    }
}

fn item_mut<'a>(list: &'a mut Value, index: &str) -> Option<&'a mut Value> {
    list.get_mut(index.parse::<usize>().ok()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn creates_missing_parents_and_removes_by_name() {
        let before = json!({"list": [{}], "a": {"b": 1, "c": 2}, "n": null});
        let mut findings = Findings::new(&before);
        let editor = &mut findings.editor;
        editor.set(&["list", "0", "limits", "a/b~c"], json!("1"));
        editor.set(&["list", "1", "limits"], json!("no such item"));
        editor.set(&["n", "x"], json!(1));
        assert!(editor.remove(&["a", "c"]));
        assert!(!editor.remove(&["a", "d"]) && !editor.remove(&["list", "1", "x"]));
        let after = json!({"list": [{"limits": {"a/b~c": "1"}}], "a": {"b": 1}, "n": {"x": 1}});
        assert_eq!(editor.pod(), &after);
        let Verdict::Allow { patch, .. } = findings.verdict(&before) else {
            panic!("refused");
        };
        let mut patched = before;
        json_patch::patch(&mut patched, &patch).unwrap();
        assert_eq!(patched, after);
    }
}
