//! The JSON schema of a configuration, for editors.
//!
//! Fed by: the table that [`read`](crate::read()) checks against, so the two cannot
//! differ. Must not: say what a schema cannot; the rest is in the messages.

use serde_json::{Map, Value, json};

use crate::shape::{Field, Kind, MODE, Shape};
use crate::table;

/// The schema (draft 2020-12), as text with a line's end.
pub fn text() -> Result<String, serde_json::Error> {
    let mut schema = Map::new();
    schema.insert(
        "$schema".to_owned(),
        json!("https://json-schema.org/draft/2020-12/schema"),
    );
    schema.insert(
        "title".to_owned(),
        json!("Aliquot: which GPU is shared in which way"),
    );
    if let Value::Object(rest) = of(&table::CONFIG) {
        schema.extend(rest);
    }
    // By key, whatever map serde_json was built with.
    Ok(serde_json::to_string_pretty(&ordered(Value::Object(schema)))? + "\n")
}

fn of(shape: &Shape) -> Value {
    match shape {
        Shape::Flag => json!({"type": "boolean"}),
        Shape::Whole { least, most } => {
            json!({"type": "integer", "minimum": least, "maximum": most})
        }
        Shape::Scaling => {
            json!({"type": "number", "minimum": 0.1, "maximum": 16, "multipleOf": 0.001})
        }
        Shape::Words(words) => json!({"enum": words}),
        Shape::Text(form) => json!({"type": "string", "pattern": form.pattern}),
        Shape::List(entry, least) => {
            json!({"type": "array", "items": of(entry), "minItems": least})
        }
        Shape::OneOrMore(entry) => {
            let entry = of(entry);
            json!({"anyOf": [entry, {"type": "array", "items": entry, "minItems": 1}]})
        }
        Shape::Map(form, value) => json!({
            "type": "object",
            "propertyNames": {"pattern": form.pattern},
            "additionalProperties": of(value),
        }),
        Shape::Keys(fields) => object(&[fields], None),
        Shape::Modes {
            common,
            kinds,
            bare,
        } => {
            let modes = kinds.iter().map(|kind| mode(common, kind));
            let mut ways: Vec<Value> = modes.collect();
            if *bare {
                let names = kinds
                    .iter()
                    .filter(|kind| kind.fields.iter().all(|f| !f.required));
                let names: Vec<&str> = names.map(|kind| kind.name).collect();
                ways.push(json!({"enum": names}));
            }
            json!({"oneOf": ways})
        }
        Shape::Any => json!({}),
    }
}

fn mode(common: &[Field], kind: &Kind) -> Value {
    object(&[common, kind.fields], Some(kind.name))
}

fn object(tables: &[&[Field]], mode: Option<&str>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    if let Some(name) = mode {
        properties.insert(MODE.to_owned(), json!({"const": name}));
        required.push(MODE);
    }
    for field in tables.iter().copied().flatten() {
        let mut schema = of(&field.shape);
        schema["description"] = json!(field.means);
        properties.insert(field.key.to_owned(), schema);
        if field.required {
            required.push(field.key);
        }
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn ordered(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(String, Value)> = map.into_iter().collect();
            entries.sort_by(|one, other| one.0.cmp(&other.0));
            let entries = entries
                .into_iter()
                .map(|(key, value)| (key, ordered(value)));
            Value::Object(entries.collect())
        }
        Value::Array(entries) => entries.into_iter().map(ordered).collect(),
        plain => plain,
    }
}
