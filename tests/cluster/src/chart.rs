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
    Ok(json!({"Values": values, "Release": {"Namespace": NAMESPACE}}))
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
            let is = value.as_bool();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, &str>) {
        let context = json!({"Values": {"a": {"b": "c", "n": 3, "yes": true, "no": false, "list": ["x", "y"]}}});
        let rendered = render(text, &context).map_err(|error| error.to_string());
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(rendered, expected, "{text}");
    }

    #[test]
    fn fills_in_values_and_includes_or_omits_lines() {
        check("x: \"{{ .Values.a.b }}/y\"", Ok("x: \"c/y\""));
        check("{{ .Values.a.n }} {{ .Values.a.yes }}", Ok("3 true"));
        check(
            "1\n{{- if .Values.a.yes }}\n2\n{{- end }}\n3",
            Ok("1\n2\n3"),
        );
        check("1\n{{- if .Values.a.no }}\n2\n{{- end }}\n3", Ok("1\n3"));
        let list = "{{- range .Values.a.list }}\n- {{ . }}\n{{- end }}\n3";
        check(list, Ok("- x\n- y\n3"));
    }

    #[test]
    fn rejects_unknown_values() {
        check("{{ .Values.z }}", Err("no value for \".Values.z\""));
        check(
            "{{ .Values.a }}",
            Err(
                r#".Values.a is {"b":"c","list":["x","y"],"n":3,"no":false,"yes":true}, not one word"#,
            ),
        );
        check("{{ .Values.a.b", Err("{{ .Values.a.b"));
        check(
            "{{- if .Values.a.b }}\n{{- end }}",
            Err(".Values.a.b is neither true nor false"),
        );
        check("{{- if .Values.a.no }}", Err("`if` without `end`"));
        check("{{- end }}", Err("`end` without `if`"));
        assert!(context(&[("no.such".to_owned(), json!(1))]).is_err());
    }
}
