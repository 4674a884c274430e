//! A file of the product's chart with its values filled in.
//!
//! Fed by: `charts/aliquot`. It knows the two forms of Helm's templates that the
//! file uses: `{{ .Values.a.b }}`, and whole lines `{{- if .Values.a }}` and
//! `{{- end }}`. Must not: guess; what it does not know is an error.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

/// Where the chart is installed.
const NAMESPACE: &str = "aliquot-system";

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
    let mut lines = Vec::new();
    let mut kept = vec![true];
    for line in text.lines() {
        if let Some(test) = line.strip_prefix("{{- if ") {
            let path = test.strip_suffix(" }}").context(line.to_owned())?;
            let is = look(context, path)?.as_bool();
            kept.push(is.with_context(|| format!("{path} is neither true nor false"))?);
        } else if line == "{{- end }}" {
            kept.pop();
            ensure!(!kept.is_empty(), "an end without an if");
        } else if kept.iter().all(|kept| *kept) {
            lines.push(fill(line, context)?);
        }
    }
    ensure!(kept.len() == 1, "an if without an end");
    Ok(lines.join("\n"))
}

fn fill(line: &str, context: &Value) -> Result<String> {
    let mut parts = line.split("{{ ");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (path, rest) = part.split_once(" }}").context(line.to_owned())?;
        match look(context, path)? {
            Value::String(text) => filled.push_str(text),
            value @ (Value::Bool(_) | Value::Number(_)) => filled.push_str(&value.to_string()),
            other => bail!("{path} is {other}, not one word"),
        }
        filled.push_str(rest);
    }
    Ok(filled)
}

fn look<'a>(context: &'a Value, path: &str) -> Result<&'a Value> {
    let found = context.pointer(&path.replace('.', "/"));
    found.with_context(|| format!("no value for {path:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, &str>) {
        let context = json!({"Values": {"a": {"b": "c", "n": 3, "yes": true, "no": false}}});
        let rendered = render(text, &context).map_err(|error| error.to_string());
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(rendered, expected, "{text}");
    }

    #[test]
    fn values_are_filled_in_and_lines_kept_or_left_out() {
        check("x: \"{{ .Values.a.b }}/y\"", Ok("x: \"c/y\""));
        check("{{ .Values.a.n }} {{ .Values.a.yes }}", Ok("3 true"));
        check(
            "1\n{{- if .Values.a.yes }}\n2\n{{- end }}\n3",
            Ok("1\n2\n3"),
        );
        check("1\n{{- if .Values.a.no }}\n2\n{{- end }}\n3", Ok("1\n3"));
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        check("{{ .Values.z }}", Err("no value for \".Values.z\""));
        check(
            "{{ .Values.a }}",
            Err(r#".Values.a is {"b":"c","n":3,"no":false,"yes":true}, not one word"#),
        );
        check("{{ .Values.a.b", Err("{{ .Values.a.b"));
        check(
            "{{- if .Values.a.b }}\n{{- end }}",
            Err(".Values.a.b is neither true nor false"),
        );
        check("{{- if .Values.a.no }}", Err("an if without an end"));
        check("{{- end }}", Err("an end without an if"));
        assert!(context(&[("no.such".to_owned(), json!(1))]).is_err());
    }
}
