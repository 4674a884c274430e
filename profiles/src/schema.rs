//! The JSON schema of a configuration, for editors, generated from the table that
//! [`read`](crate::read()) checks against.

use serde_json::{Map, Value, json};

use crate::config_schema;
use crate::value_schema::{KeySchema, MODE, ModeSchema, ValueSchema};

/// The schema (draft 2020-12), with a final line break.
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
    if let Value::Object(rest) = of(&config_schema::CONFIG) {
        schema.extend(rest);
    }
    // By key, whatever map serde_json was built with.
    Ok(serde_json::to_string_pretty(&ordered(Value::Object(schema)))? + "\n")
}

fn of(schema: &ValueSchema) -> Value {
    match schema {
        ValueSchema::Flag => json!({"type": "boolean"}),
        ValueSchema::Whole { least, most } => {
            json!({"type": "integer", "minimum": least, "maximum": most})
        }
        ValueSchema::Scaling => {
            json!({"type": "number", "minimum": 0.1, "maximum": 16, "multipleOf": 0.001})
        }
        ValueSchema::Words(words) => json!({"enum": words}),
        ValueSchema::Text(format) => json!({"type": "string", "pattern": format.pattern}),
        ValueSchema::List(entry, least) => {
            json!({"type": "array", "items": of(entry), "minItems": least})
        }
        ValueSchema::OneOrMore(entry) => {
            let entry = of(entry);
            json!({"anyOf": [entry, {"type": "array", "items": entry, "minItems": 1}]})
        }
        ValueSchema::Map(format, value) => json!({
            "type": "object",
            "propertyNames": {"pattern": format.pattern},
            "additionalProperties": of(value),
        }),
        ValueSchema::Keys(fields) => object(&[fields], None),
        ValueSchema::Modes {
            common,
            kinds,
            name_alone,
        } => {
            let modes = kinds.iter().map(|kind| mode(common, kind));
            let mut variants: Vec<Value> = modes.collect();
            if *name_alone {
                let names = kinds
                    .iter()
                    .filter(|kind| kind.fields.iter().all(|f| !f.required));
                let names: Vec<&str> = names.map(|kind| kind.name).collect();
                variants.push(json!({"enum": names}));
            }
            json!({"oneOf": variants})
        }
        ValueSchema::Any => json!({}),
    }
}

fn mode(common: &[KeySchema], kind: &ModeSchema) -> Value {
    object(&[common, kind.fields], Some(kind.name))
}

fn object(tables: &[&[KeySchema]], mode: Option<&str>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    if let Some(name) = mode {
        properties.insert(MODE.to_owned(), json!({"const": name}));
        required.push(MODE);
    }
    for field in tables.iter().copied().flatten() {
        let mut schema = of(&field.schema);
        schema["description"] = json!(field.description);
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
