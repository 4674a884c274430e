//! Schemas of YAML documents as tables: the check of a document against one, which reports all errors
//! and every unknown key, and the same schema as JSON schema.

use serde_json::{Map, Value, json};

use crate::error::{ProfileError, child_path};
use crate::text_format::TextFormat;

/// The schema of a value.
#[derive(Clone, Copy, Debug)]
pub enum ValueSchema {
    /// `true` or `false`.
    Flag,
    /// An integer within bounds.
    Whole { least: u64, most: u64 },
    /// A [`Scaling`](crate::mode::Scaling).
    Scaling,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A string of this format.
    Text(TextFormat),
    /// A list with at least this number of entries.
    List(&'static Self, usize),
    /// One, or a list of them.
    OneOrMore(&'static Self),
    /// A mapping with keys of this format, and values of one schema.
    Map(TextFormat, &'static Self),
    /// These keys and no others.
    Keys(&'static [KeySchema]),
    /// A mapping with a key `mode`, which determines the other keys.
    Modes {
        /// Further keys in every mode.
        common: &'static [KeySchema],
        kinds: &'static [ModeSchema],
        /// A mode's name alone is accepted, with default settings.
        name_alone: bool,
    },
    /// Anything; checked elsewhere.
    Any,
}

#[derive(Clone, Copy, Debug)]
pub struct KeySchema {
    pub key: &'static str,
    pub schema: ValueSchema,
    pub required: bool,
    /// Its description in the JSON schema.
    pub description: &'static str,
}

/// One mode and the keys that belong to it.
#[derive(Clone, Copy, Debug)]
pub struct ModeSchema {
    pub name: &'static str,
    pub fields: &'static [KeySchema],
}

pub const fn required(
    key: &'static str,
    schema: ValueSchema,
    description: &'static str,
) -> KeySchema {
    KeySchema {
        key,
        schema,
        required: true,
        description,
    }
}

pub const fn optional(
    key: &'static str,
    schema: ValueSchema,
    description: &'static str,
) -> KeySchema {
    KeySchema {
        key,
        schema,
        required: false,
        description,
    }
}

/// The key that names a mode.
pub const MODE: &str = "mode";

impl ValueSchema {
    /// What is expected here, in words.
    pub fn expectation(&self) -> String {
        match self {
            Self::Flag => "true or false".to_owned(),
            Self::Whole { least, most } => format!("an integer from {least} to {most}"),
            Self::Scaling => crate::mode::Scaling::EXPECTED.to_owned(),
            Self::Words(words) => words.join(", "),
            Self::Text(format) => format.expectation.to_owned(),
            Self::List(of, _) => format!("a list of: {}", of.expectation()),
            Self::OneOrMore(of) => format!("{}, or a list of these", of.expectation()),
            Self::Map(..) => "a mapping".to_owned(),
            Self::Keys(fields) => format!("the keys {}", keys(&[fields])),
            Self::Modes {
                kinds, name_alone, ..
            } => {
                let names = kinds.iter().map(|kind| kind.name).collect::<Vec<_>>();
                let names = names.join(", ");
                let alone = if *name_alone {
                    ", or the mode's name alone"
                } else {
                    ""
                };
                format!("the key mode ({names}) and that mode's keys{alone}")
            }
            Self::Any => "anything".to_owned(),
        }
    }

    /// Appends every error of `value` at `path`.
    pub fn check(&self, value: &Value, path: &str, errors: &mut Vec<ProfileError>) {
        match (self, value) {
            (Self::Any, _) | (Self::Flag, Value::Bool(_)) => {}
            (Self::Whole { least, most }, Value::Number(number)) => {
                let is_valid = number
                    .as_u64()
                    .is_some_and(|n| (*least..=*most).contains(&n));
                let what = match number.as_u64() {
                    Some(n) if n < *least => "is too small",
                    Some(_) => "is too large",
                    None => "is not a non-negative integer",
                };
                self.expect(is_valid, value, path, what, errors);
            }
            (Self::Scaling, Value::Number(number)) => {
                let is_valid = crate::mode::Scaling::parse(&number.to_string()).is_some();
                self.expect(is_valid, value, path, "is not a valid scaling", errors);
            }
            (Self::Words(words), Value::String(text)) => {
                let is_valid = words.contains(&text.as_str());
                self.expect(is_valid, value, path, "is not a valid value", errors);
            }
            (Self::Text(format), Value::String(text)) => {
                self.expect(
                    (format.matches)(text),
                    value,
                    path,
                    "has the wrong format",
                    errors,
                );
            }
            (Self::List(of, least), Value::Array(entries)) => {
                if entries.len() < *least {
                    let expected = format!("at least {least} of: {}", of.expectation());
                    errors.push(ProfileError::new(
                        path,
                        value,
                        "has too few entries",
                        expected,
                    ));
                }
                each(of, entries, path, errors);
            }
            (Self::OneOrMore(of), Value::Array(entries)) => {
                self.expect(!entries.is_empty(), value, path, "is an empty list", errors);
                each(of, entries, path, errors);
            }
            (Self::OneOrMore(of), _) => of.check(value, path, errors),
            (Self::Map(format, of), Value::Object(map)) => {
                for (key, value) in map {
                    let path = child_path(path, key);
                    if !(format.matches)(key) {
                        let key = Value::from(key.as_str());
                        errors.push(ProfileError::new(
                            &path,
                            &key,
                            "is not a valid key",
                            format.expectation,
                        ));
                    }
                    of.check(value, &path, errors);
                }
            }
            (Self::Keys(fields), Value::Object(map)) => object(map, &[fields], path, errors),
            (Self::Modes { common, kinds, .. }, Value::Object(map)) => {
                modes(map, common, kinds, path, errors);
            }
            (
                Self::Modes {
                    kinds,
                    name_alone: true,
                    ..
                },
                Value::String(name),
            ) => {
                let mut map = Map::new();
                map.insert(MODE.to_owned(), Value::from(name.as_str()));
                modes(&map, &[], kinds, path, errors);
            }
            _ => {
                let what = format!("is {}", kind_of(value));
                errors.push(ProfileError::new(path, value, what, self.expectation()));
            }
        }
    }

    /// The JSON schema (draft 2020-12).
    pub fn json_schema(&self) -> Value {
        match self {
            Self::Flag => json!({"type": "boolean"}),
            Self::Whole { least, most } => {
                json!({"type": "integer", "minimum": least, "maximum": most})
            }
            Self::Scaling => {
                json!({"type": "number", "minimum": 0.1, "maximum": 16, "multipleOf": 0.001})
            }
            Self::Words(words) => json!({"enum": words}),
            Self::Text(format) => json!({"type": "string", "pattern": format.pattern}),
            Self::List(entry, least) => {
                json!({"type": "array", "items": entry.json_schema(), "minItems": least})
            }
            Self::OneOrMore(entry) => {
                let entry = entry.json_schema();
                json!({"anyOf": [entry, {"type": "array", "items": entry, "minItems": 1}]})
            }
            Self::Map(format, value) => json!({
                "type": "object",
                "propertyNames": {"pattern": format.pattern},
                "additionalProperties": value.json_schema(),
            }),
            Self::Keys(fields) => json_object(&[fields], None),
            Self::Modes {
                common,
                kinds,
                name_alone,
            } => {
                let modes = kinds.iter().map(|kind| json_mode(common, kind));
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
            Self::Any => json!({}),
        }
    }

    fn expect(
        &self,
        is_valid: bool,
        value: &Value,
        path: &str,
        what: &str,
        errors: &mut Vec<ProfileError>,
    ) {
        if !is_valid {
            errors.push(ProfileError::new(path, value, what, self.expectation()));
        }
    }
}

fn each(of: &ValueSchema, entries: &[Value], path: &str, errors: &mut Vec<ProfileError>) {
    for (index, entry) in entries.iter().enumerate() {
        of.check(entry, &format!("{path}[{index}]"), errors);
    }
}

fn modes(
    map: &Map<String, Value>,
    common: &[KeySchema],
    kinds: &[ModeSchema],
    path: &str,
    errors: &mut Vec<ProfileError>,
) {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
    let mode_path = child_path(path, MODE);
    let Some(mode) = map.get(MODE) else {
        errors.push(ProfileError::without_value(
            mode_path,
            "is missing",
            names.join(", "),
        ));
        return;
    };
    let kind = kinds.iter().find(|kind| mode.as_str() == Some(kind.name));
    let Some(kind) = kind else {
        errors.push(ProfileError::new(
            mode_path,
            mode,
            "is not a mode",
            names.join(", "),
        ));
        return;
    };
    let tag = [required(MODE, ValueSchema::Any, "")];
    object(map, &[&tag, common, kind.fields], path, errors);
}

fn object(
    map: &Map<String, Value>,
    tables: &[&[KeySchema]],
    path: &str,
    errors: &mut Vec<ProfileError>,
) {
    let fields = || tables.iter().copied().flatten();
    for key in map.keys() {
        if fields().all(|field| field.key != key) {
            let path = child_path(path, key);
            errors.push(ProfileError::without_value(
                path,
                "unknown key",
                keys(tables),
            ));
        }
    }
    for field in fields() {
        let path = child_path(path, field.key);
        match map.get(field.key) {
            Some(value) => field.schema.check(value, &path, errors),
            None if field.required => {
                errors.push(ProfileError::without_value(
                    path,
                    "is missing",
                    field.schema.expectation(),
                ));
            }
            None => {}
        }
    }
}

fn keys(tables: &[&[KeySchema]]) -> String {
    let keys: Vec<&str> = tables.iter().copied().flatten().map(|f| f.key).collect();
    keys.join(", ")
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "a boolean (quote it to make it text)",
        Value::Number(_) => "a number (quote it to make it text)",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

fn json_mode(common: &[KeySchema], kind: &ModeSchema) -> Value {
    json_object(&[common, kind.fields], Some(kind.name))
}

fn json_object(tables: &[&[KeySchema]], mode: Option<&str>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    if let Some(name) = mode {
        properties.insert(MODE.to_owned(), json!({"const": name}));
        required.push(MODE);
    }
    for field in tables.iter().copied().flatten() {
        let mut schema = field.schema.json_schema();
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
