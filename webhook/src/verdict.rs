//! The answer to a review: refusals, or a JSON patch and warnings; and how the steps of a review
//! collect them.

use std::fmt;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::{Map, Value};

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Every error found, at least one.
    Deny(Vec<Refusal>),
    /// Admitted.
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
            editor: PodEditor::new(pod),
        }
    }

    pub(crate) fn verdict(self) -> Verdict {
        if self.refusals.is_empty() {
            Verdict::Allow {
                patch: Patch(self.editor.operations),
                warnings: self.warnings,
            }
        } else {
            Verdict::Deny(self.refusals)
        }
    }
}

/// The pod as it will be, and the operations that lead there. Each of them changes something.
pub(crate) struct PodEditor {
    pod: Value,
    operations: Vec<PatchOperation>,
}

impl PodEditor {
    pub(crate) fn new(pod: &Value) -> Self {
        Self {
            pod: pod.clone(),
            operations: Vec::new(),
        }
    }

    /// The pod with all operations so far applied.
    pub(crate) fn pod(&self) -> &Value {
        &self.pod
    }

    /// Sets the field at `tokens` (unescaped), creating missing parent objects.
    pub(crate) fn set(&mut self, tokens: &[&str], value: Value) {
        for depth in 1..tokens.len() {
            let (above, _) = tokens.split_at(depth);
            if self.get(above).is_none_or(Value::is_null) {
                self.put(above, Value::Object(Map::new()));
            }
        }
        if self.get(tokens) != Some(&value) {
            self.put(tokens, value);
        }
    }

    /// Removes the field at `tokens`; `true` when it was there.
    pub(crate) fn remove(&mut self, tokens: &[&str]) -> bool {
        let Some((last, above)) = tokens.split_last() else {
            return false;
        };
        let parent = value_at_mut(&mut self.pod, above).and_then(Value::as_object_mut);
        let removed = parent.and_then(|parent| parent.remove(*last)).is_some();
        if removed {
            let path = pointer(tokens);
            let operation = PatchOperation::Remove(RemoveOperation { path });
            self.operations.push(operation);
        }
        removed
    }

    fn get(&self, tokens: &[&str]) -> Option<&Value> {
        tokens
            .iter()
            .try_fold(&self.pod, |at, token| step(at, token))
    }

    fn put(&mut self, tokens: &[&str], value: Value) {
        let Some((last, above)) = tokens.split_last() else {
            return;
        };
        let Some(parent) = value_at_mut(&mut self.pod, above).and_then(Value::as_object_mut) else {
            return;
        };
        let before = parent.insert((*last).to_owned(), value.clone());
        let path = pointer(tokens);
        self.operations.push(match before {
            Some(_) => PatchOperation::Replace(ReplaceOperation { path, value }),
            None => PatchOperation::Add(AddOperation { path, value }),
        });
    }
}

fn pointer(tokens: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(tokens.iter().copied())
}

fn step<'a>(at: &'a Value, token: &str) -> Option<&'a Value> {
    match at {
        Value::Object(fields) => fields.get(token),
        Value::Array(items) => items.get(token.parse::<usize>().ok()?),
        _ => None,
    }
}

fn value_at_mut<'a>(pod: &'a mut Value, tokens: &[&str]) -> Option<&'a mut Value> {
    tokens.iter().try_fold(pod, |at, token| match at {
        Value::Object(fields) => fields.get_mut(*token),
        Value::Array(items) => items.get_mut(token.parse::<usize>().ok()?),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(pod: &Value, edit: impl Fn(&mut PodEditor), expected: &Value) {
        let mut editor = PodEditor::new(pod);
        edit(&mut editor);
        let after = editor.pod().clone();
        let patch = Patch(editor.operations);
        assert_eq!(&serde_json::to_value(&patch).unwrap(), expected);
        let mut patched = pod.clone();
        json_patch::patch(&mut patched, &patch).unwrap();
        assert_eq!(patched, after);
    }

    #[test]
    fn escapes_pointer_tokens_and_creates_missing_parents() {
        check(
            &json!({"spec": {"list": [{}]}}),
            |editor| editor.set(&["spec", "list", "0", "limits", "a/b~c"], json!("1")),
            &json!([
                {"op": "add", "path": "/spec/list/0/limits", "value": {}},
                {"op": "add", "path": "/spec/list/0/limits/a~1b~0c", "value": "1"},
            ]),
        );
    }

    #[test]
    fn replaces_existing_values_and_removes_by_name() {
        check(
            &json!({"a": {"b": 1, "c": 2}, "n": null}),
            |editor| {
                editor.set(&["a", "b"], json!(3));
                assert!(editor.remove(&["a", "c"]));
                editor.set(&["n", "x"], json!(1));
            },
            &json!([
                {"op": "replace", "path": "/a/b", "value": 3},
                {"op": "remove", "path": "/a/c"},
                {"op": "replace", "path": "/n", "value": {}},
                {"op": "add", "path": "/n/x", "value": 1},
            ]),
        );
    }
}
