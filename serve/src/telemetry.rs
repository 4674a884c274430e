//! Logs: one subscriber for the process, as text or JSON, to stderr.

use std::io::IsTerminal;
use std::str::FromStr;
use std::time::Instant;

use thiserror::Error;
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::repeated_warnings::LogOnce;

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One readable line for each event.
    #[default]
    Text,
    /// One JSON object for each event.
    Json,
}

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
    #[error("log filter {filter:?} is invalid")]
    Filter { filter: String, source: ParseError },
    #[error("logging is already set up in this process")]
    Installed(#[source] TryInitError),
    #[error("cannot start a thread for the log")]
    Thread(#[source] std::io::Error),
}

/// Installs the process's subscriber. `filter` is in the language of `RUST_LOG`,
/// such as `info,aliquot_webhook=debug`.
pub fn init(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    let once = LogOnce::new(Instant::now);
    let installed = subscriber(format, filter, &once, std::io::stderr)?.try_init();
    installed.map_err(TelemetryError::Installed)?;
    once.log_notes_at_interval().map_err(TelemetryError::Thread)
}

/// The subscriber of a process that logs to `writer`, each warning `once`.
pub fn subscriber<W>(
    format: LogFormat,
    filter: &str,
    once: &LogOnce,
    writer: W,
) -> Result<Box<dyn Subscriber + Send + Sync>, TelemetryError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let env_filter = EnvFilter::try_new(filter).map_err(|source| TelemetryError::Filter {
        filter: filter.to_owned(),
        source,
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(env_filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(writer);
    let once = once.clone();
    Ok(match format {
        LogFormat::Text => Box::new(lines.finish().with(once)),
        LogFormat::Json => Box::new(lines.json().flatten_event(true).finish().with(once)),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn passes_each_warning_of_a_program_once() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&log);
        let writer = move || Lines(Arc::clone(&written));
        let once = LogOnce::new(Instant::now);
        let lines = subscriber(LogFormat::Text, "info", &once, writer).expect("a filter");
        tracing::subscriber::with_default(lines, || {
            for round in 0..100 {
                tracing::warn!(path = "/a", error = "no space left", "cannot write");
                tracing::error!(round = round / 50, "cannot read");
                tracing::info!("a decision");
            }
        });
        let log = String::from_utf8(log.lock().clone()).expect("text");
        let count = |part: &str| log.lines().filter(|line| line.contains(part)).count();
        let found = ["cannot write", "cannot read", "a decision"].map(count);
        assert_eq!(found, [1, 2, 100], "{log}");
    }

    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
