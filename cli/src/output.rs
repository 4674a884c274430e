//! Output formats of the commands that have `-o`.

use clap::ValueEnum;
use serde::Serialize;
use thiserror::Error;

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table for a terminal
    #[default]
    Table,
    /// A table with all rows and columns
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

#[derive(Debug, Error)]
pub enum OutputError {
    #[error("cannot write the answer as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("cannot write the answer as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

impl Output {
    /// The text of an answer; `table` formats the tables, with everything if its argument is true.
    pub fn text<T: Serialize>(
        self,
        answer: &T,
        table: impl FnOnce(bool) -> String,
    ) -> Result<String, OutputError> {
        Ok(match self {
            Self::Table => printable(table(false)),
            Self::Wide => printable(table(true)),
            Self::Json => serde_json::to_string_pretty(answer)? + "\n",
            // Through JSON, so that both have the same fields in the same form.
            Self::Yaml => serde_saphyr::to_string(&serde_json::to_value(answer)?)?,
        })
    }
}

/// What others wrote, such as the name of a pod's owner, commands no terminal.
pub fn printable(text: String) -> String {
    let is_command = |c: char| c.is_control() && c != '\n';
    if !text.contains(is_command) {
        return text;
    }
    let mut printable = String::new();
    for c in text.chars() {
        if is_command(c) {
            printable.extend(c.escape_unicode());
        } else {
            printable.push(c);
        }
    }
    printable
}

/// What a command prints of an error.
pub fn message(error: &anyhow::Error) -> String {
    printable(with_causes(&**error))
}

/// An error with its causes in one line, each once: many texts contain that of their cause. An answer of the API
/// server is its message.
pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    for cause in anyhow::Chain::new(error) {
        let answer = match cause.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) => Some(status.message.clone()),
            _ => None,
        };
        let answer = answer.filter(|message| !message.is_empty());
        let is_last = answer.is_some();
        let cause = answer.unwrap_or_else(|| cause.to_string());
        if !text.contains(&cause) {
            let between = if text.is_empty() { "" } else { ": " };
            text.extend([between, &cause]);
        }
        if is_last {
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_commands_no_terminal() {
        let table = |_| "Job/\u{1b}[2Ja\u{9b}é\n".to_owned();
        let text = Output::Table.text(&(), table).unwrap();
        assert_eq!(text, "Job/\\u{1b}[2Ja\\u{9b}é\n");
    }

    #[test]
    fn reports_each_cause_of_an_error_once() {
        #[derive(Debug, Error)]
        #[error("the manifest cannot be parsed: {0}")]
        struct Outer(#[from] std::num::ParseIntError);
        let cause = "x".parse::<u8>().unwrap_err();
        let error = anyhow::Error::from(Outer(cause)).context("pod.yaml");
        assert_eq!(
            message(&error),
            "pod.yaml: the manifest cannot be parsed: invalid digit found in string"
        );
    }
}
