//! What a YAML document may look like, as a table; and the check of a document
//! against one. The JSON schema is made from the same tables.
//!
//! Fed by: tables of this crate, and a document as a JSON value.
//! Must not: stop at the first fault, or pass over a key that it does not know.

use serde_json::{Map, Value};

use crate::fault::{Fault, below};
use crate::form::Form;

/// What may stand at one place.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// `true` or `false`.
    Flag,
    /// A whole number within bounds.
    Whole {
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// A [`Scaling`](crate::mode::Scaling).
    Scaling,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A text of this form.
    Text(Form),
    /// A list with at least so many entries.
    List(&'static Self, usize),
    /// One, or a list of them.
    OneOrMore(&'static Self),
    /// Keys of this form, all with values of one shape.
    Map(Form, &'static Self),
    /// These keys and no others.
    Keys(&'static [Field]),
    /// A key `mode`, which says what other keys there may be.
    Modes {
        /// Keys beside it in every mode.
        common: &'static [Field],
        /// The modes.
        kinds: &'static [Kind],
        /// A mode's name alone stands for it with nothing set.
        bare: bool,
    },
    /// Whatever; looked at elsewhere.
    Any,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The key.
    pub key: &'static str,
    /// What stands under it.
    pub shape: Shape,
    /// It may not be left out.
    pub required: bool,
    /// What it means, for the JSON schema.
    pub means: &'static str,
}

/// One mode and the keys that belong to it.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The mode's name.
    pub name: &'static str,
    /// Its keys.
    pub fields: &'static [Field],
}

/// A key that must be there.
pub const fn must(key: &'static str, shape: Shape, means: &'static str) -> Field {
    Field {
        key,
        shape,
        required: true,
        means,
    }
}

/// A key that may be there.
pub const fn may(key: &'static str, shape: Shape, means: &'static str) -> Field {
    Field {
        key,
        shape,
        required: false,
        means,
    }
}

/// The key that names a mode.
pub const MODE: &str = "mode";

impl Shape {
    /// What is accepted here, in words.
    pub fn says(&self) -> String {
        match self {
            Self::Flag => "true or false".to_owned(),
            Self::Whole { least, most } => format!("a whole number, {least} to {most}"),
            Self::Scaling => crate::mode::Scaling::SAYS.to_owned(),
            Self::Words(words) => words.join(", "),
            Self::Text(form) => form.says.to_owned(),
            Self::List(of, _) => format!("a list of: {}", of.says()),
            Self::OneOrMore(of) => format!("{}, or a list of such", of.says()),
            Self::Map(..) => "keys with values".to_owned(),
            Self::Keys(fields) => format!("the keys {}", keys(&[fields])),
            Self::Modes { kinds, bare, .. } => {
                let names = kinds.iter().map(|kind| kind.name).collect::<Vec<_>>();
                let names = names.join(", ");
                let alone = if *bare { ", or its name alone" } else { "" };
                format!("the key mode ({names}) and that mode's keys{alone}")
            }
            Self::Any => "anything".to_owned(),
        }
    }

    /// Appends every fault of `value`, which stands at `path`.
    pub fn check(&self, value: &Value, path: &str, faults: &mut Vec<Fault>) {
        match (self, value) {
            (Self::Any, _) | (Self::Flag, Value::Bool(_)) => {}
            (Self::Whole { least, most }, Value::Number(number)) => {
                let fits = number
                    .as_u64()
                    .is_some_and(|n| (*least..=*most).contains(&n));
                let what = match number.as_u64() {
                    Some(n) if n < *least => "is too small",
                    Some(_) => "is too large",
                    None => "is not a whole number from 0 on",
                };
                self.expect(fits, value, path, what, faults);
            }
            (Self::Scaling, Value::Number(number)) => {
                let fits = crate::mode::Scaling::parse(&number.to_string()).is_some();
                self.expect(fits, value, path, "is no scaling", faults);
            }
            (Self::Words(words), Value::String(text)) => {
                let fits = words.contains(&text.as_str());
                self.expect(fits, value, path, "is none of the known words", faults);
            }
            (Self::Text(form), Value::String(text)) => {
                self.expect((form.fits)(text), value, path, "has another form", faults);
            }
            (Self::List(of, least), Value::Array(entries)) => {
                if entries.len() < *least {
                    let accepted = format!("at least {least} of: {}", of.says());
                    faults.push(Fault::new(path, value, "has too few entries", accepted));
                }
                each(of, entries, path, faults);
            }
            (Self::OneOrMore(of), Value::Array(entries)) => {
                self.expect(!entries.is_empty(), value, path, "names nothing", faults);
                each(of, entries, path, faults);
            }
            (Self::OneOrMore(of), _) => of.check(value, path, faults),
            (Self::Map(form, of), Value::Object(map)) => {
                for (key, value) in sorted(map) {
                    let path = below(path, key);
                    if !(form.fits)(key) {
                        let key = Value::from(key.as_str());
                        faults.push(Fault::new(&path, &key, "is not such a key", form.says));
                    }
                    of.check(value, &path, faults);
                }
            }
            (Self::Keys(fields), Value::Object(map)) => object(map, &[fields], path, faults),
            (Self::Modes { common, kinds, .. }, Value::Object(map)) => {
                modes(map, common, kinds, path, faults);
            }
            (
                Self::Modes {
                    kinds, bare: true, ..
                },
                Value::String(name),
            ) => {
                let mut map = Map::new();
                map.insert(MODE.to_owned(), Value::from(name.as_str()));
                modes(&map, &[], kinds, path, faults);
            }
            _ => {
                let what = format!("is {}", kind_of(value));
                faults.push(Fault::new(path, value, what, self.says()));
            }
        }
    }

    fn expect(&self, fits: bool, value: &Value, path: &str, what: &str, faults: &mut Vec<Fault>) {
        if !fits {
            faults.push(Fault::new(path, value, what, self.says()));
        }
    }
}

fn each(of: &Shape, entries: &[Value], path: &str, faults: &mut Vec<Fault>) {
    for (index, entry) in entries.iter().enumerate() {
        of.check(entry, &format!("{path}[{index}]"), faults);
    }
}

fn modes(
    map: &Map<String, Value>,
    common: &[Field],
    kinds: &[Kind],
    path: &str,
    faults: &mut Vec<Fault>,
) {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
    let place = below(path, MODE);
    let Some(mode) = map.get(MODE) else {
        faults.push(Fault::bare(place, "is missing", names.join(", ")));
        return;
    };
    let kind = kinds.iter().find(|kind| mode.as_str() == Some(kind.name));
    let Some(kind) = kind else {
        faults.push(Fault::new(place, mode, "is no mode", names.join(", ")));
        return;
    };
    let tag = [must(MODE, Shape::Any, "")];
    object(map, &[&tag, common, kind.fields], path, faults);
}

fn object(map: &Map<String, Value>, tables: &[&[Field]], path: &str, faults: &mut Vec<Fault>) {
    let fields = || tables.iter().copied().flatten();
    for (key, value) in sorted(map) {
        if fields().all(|field| field.key != key) {
            let what = "is under an unknown key";
            faults.push(Fault::new(below(path, key), value, what, keys(tables)));
        }
    }
    for field in fields() {
        let path = below(path, field.key);
        match map.get(field.key) {
            Some(value) => field.shape.check(value, &path, faults),
            None if field.required => {
                faults.push(Fault::bare(path, "is missing", field.shape.says()));
            }
            None => {}
        }
    }
}

fn keys(tables: &[&[Field]]) -> String {
    let keys: Vec<&str> = tables.iter().copied().flatten().map(|f| f.key).collect();
    keys.join(", ")
}

/// By key: the order of a JSON map depends on what else is in the build.
fn sorted(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    entries
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false (quotes make it text)",
        Value::Number(_) => "a number (quotes make it text)",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "keys with values",
    }
}
