//! Logs: one subscriber for the process, as text or JSON, to stderr.

use std::io::IsTerminal;
use std::str::FromStr;

use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One readable line for each event.
    #[default]
    Text,
    /// One JSON object for each event.
    Json,
}

/// An unknown log format.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{value:?} is not a log format; expected: json, text")]
pub struct UnknownLogFormat {
    value: String,
}

impl FromStr for LogFormat {
    type Err = UnknownLogFormat;

    fn from_str(value: &str) -> Result<Self, Self::Err> {
        match value {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(UnknownLogFormat {
                value: other.to_owned(),
            }),
        }
    }
}

/// Why logging could not be set up.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The filter is not valid for `RUST_LOG`.
    #[error("log filter {filter:?} is invalid")]
    Filter {
        /// The filter as given.
        filter: String,
        /// What is wrong with it.
        source: ParseError,
    },
    /// A subscriber is installed already.
    #[error("logging is already set up in this process")]
    Installed(#[source] TryInitError),
}

/// Installs the process's subscriber. `filter` is in the language of `RUST_LOG`,
/// such as `info,aliquot_webhook=debug`.
pub fn init(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    let env_filter = EnvFilter::try_new(filter).map_err(|source| TelemetryError::Filter {
        filter: filter.to_owned(),
        source,
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(env_filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    }
    .map_err(TelemetryError::Installed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_formats_are_text_and_json() {
        assert_eq!("json".parse(), Ok(LogFormat::Json));
        assert_eq!("text".parse(), Ok(LogFormat::Text));
        let refused = "xml".parse::<LogFormat>().unwrap_err().to_string();
        assert_eq!(
            refused,
            r#""xml" is not a log format; expected: json, text"#
        );
    }

    #[test]
    fn names_an_invalid_log_filter() {
        let refused = init(LogFormat::Text, "info=loud=quiet").unwrap_err();
        assert_eq!(
            refused.to_string(),
            r#"log filter "info=loud=quiet" is invalid"#
        );
    }
}
