//! A file of `charts/aliquot` with its values filled in.
//!
//! It supports only the template syntax that the file uses: `{{ .Values.a.b }}`, whole lines `{{-
//! if .Values.a }}` or `{{- range .Values.a }}` with `{{ . }}` inside, and `{{- end }}`. Anything
//! else is an error.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

/// Where the chart is installed.
pub(crate) const NAMESPACE: &str = "aliquot-system";

/// What the templates see: the chart's values, some of them set to others
/// (a path such as `scheduler.cpuOnly`).
pub(crate) fn context(set: &[(String, Value)]) -> Result<Value> {
    let mut values: Value = serde_saphyr::from_str(&read("values.yaml")?)?;
    for (path, value) in set {
        let pointer = format!("/{}", path.replace('.', "/"));
        let place = values.pointer_mut(&pointer);
        *place.with_context(|| format!("the chart has no value {path}"))? = value.clone();
    }
    Ok(json!({"Values": values, "Release": {"Name": "aliquot", "Namespace": NAMESPACE}}))
}

/// The text of one of the chart's files.
pub(crate) fn read(file: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../charts/aliquot")
        .join(file);
    std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The text with every template replaced.
pub(crate) fn render(text: &str, context: &Value) -> Result<String> {
    let lines: Vec<&str> = text.lines().collect();
    Ok(block(&lines, context)?.join("\n"))
}

fn block(lines: &[&str], context: &Value) -> Result<Vec<String>> {
    let mut made = Vec::new();
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        at += 1;
        let test = line.strip_prefix("{{- if ");
        let Some(open) = test.or_else(|| line.strip_prefix("{{- range ")) else {
            ensure!(*line != "{{- end }}", "`end` without `if`");
            made.push(fill(line, context)?);
            continue;
        };
        let path = open.strip_suffix(" }}").context((*line).to_owned())?;
        let inside = &lines[at..at + end(&lines[at..])?];
        at += inside.len() + 1;
        let value = lookup(context, path)?;
        if test.is_some() {
            let is = match value {
                Value::Array(items) => Some(!items.is_empty()),
                other => other.as_bool(),
            };
            if is.with_context(|| format!("{path} is neither true nor false"))? {
                made.extend(block(inside, context)?);
            }
            continue;
        }
        let items = value.as_array();
        for item in items.with_context(|| format!("{path} is no list"))? {
            let mut one = context.clone();
            one[""] = item.clone();
            made.extend(block(inside, &one)?);
        }
    }
    Ok(made)
}

/// The line on which the block ends that is open at the first line.
fn end(lines: &[&str]) -> Result<usize> {
    let mut open = 1;
    let end = lines.iter().position(|line| {
        if line.starts_with("{{- if ") || line.starts_with("{{- range ") {
            open += 1;
        } else if *line == "{{- end }}" {
            open -= 1;
        }
        open == 0
    });
    end.context("`if` without `end`")
}

fn fill(line: &str, context: &Value) -> Result<String> {
    let mut parts = line.split("{{ ");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (path, rest) = part.split_once(" }}").context(line.to_owned())?;
        match lookup(context, path)? {
            Value::String(text) => filled.push_str(text),
            value @ (Value::Bool(_) | Value::Number(_)) => filled.push_str(&value.to_string()),
            other => bail!("{path} is {other}, not one word"),
        }
        filled.push_str(rest);
    }
    Ok(filled)
}

fn lookup<'a>(context: &'a Value, path: &str) -> Result<&'a Value> {
    let found = context.pointer(&path.replace('.', "/"));
    found.with_context(|| format!("no value for {path:?}"))
}
