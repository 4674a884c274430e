//! A raw pod, and the JSON patch that leads to its present state.
//!
//! No operation of the patch is one that changes nothing.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::{Map, Value};

/// The pod as it will be, and the operations that lead there.
pub(super) struct PodEditor {
    pod: Value,
    operations: Vec<PatchOperation>,
}

impl PodEditor {
    pub(super) fn new(pod: &Value) -> Self {
        Self {
            pod: pod.clone(),
            operations: Vec::new(),
        }
    }

    /// The pod with all operations so far applied.
    pub(super) fn pod(&self) -> &Value {
        &self.pod
    }

    /// Sets the field at `tokens` (unescaped), creating missing parent objects.
    pub(super) fn set(&mut self, tokens: &[&str], value: Value) {
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
    pub(super) fn remove(&mut self, tokens: &[&str]) -> bool {
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

    pub(super) fn into_patch(self) -> Patch {
        Patch(self.operations)
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
        let patch = editor.into_patch();
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
    fn emits_no_operation_when_nothing_changes() {
        check(
            &json!({"a": {"b": 1}}),
            |editor| {
                editor.set(&["a", "b"], json!(1));
                editor.remove(&["a", "c"]);
            },
            &json!([]),
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
