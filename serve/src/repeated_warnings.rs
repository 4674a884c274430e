//! A log is not a flood: a warning that repeats is logged once, until its text changes or it is over.
//! The log names a repeated warning again when it is over, with how often it occurred.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write as _};
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// A warning that has not occurred for so long is over.
const OVER_AFTER: Duration = Duration::from_mins(10);
/// The interval at which warnings that are over are logged.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How many different warnings of one place in the code are logged before one of them is over.
const MAX_OF_PLACE: usize = 32;
/// How much of a warning's text is kept, in bytes.
const MAX_TEXT: usize = 512;

/// A place in the code: module and line.
type Place = (&'static str, Option<u32>);

/// A warning that was logged and is not over.
#[derive(Debug)]
struct Warning {
    text: String,
    last: Instant,
    count: u64,
}

#[derive(Debug, Default)]
struct OfPlace {
    /// By the hash of the whole text.
    logged: BTreeMap<u64, Warning>,
    /// Warnings that were not logged because there were too many different ones.
    omitted: u64,
    /// Whether the log says that some are omitted.
    announced: bool,
}

/// What the log says of repeated warnings.
#[derive(Debug, PartialEq, Eq)]
enum Note {
    /// A warning is over, which occurred so many times.
    Over(String, u64),
    /// Warnings of this place are omitted from now on.
    Omitting(Place),
    /// So many warnings of this place were omitted.
    Omitted(Place, u64),
}

/// The warnings that were logged, at most [`MAX_OF_PLACE`] for each place in the code.
#[derive(Debug, Default)]
struct Warnings(BTreeMap<Place, OfPlace>);

impl Warnings {
    /// Whether to log this warning now.
    fn is_new(&mut self, place: Place, text: WarningText, now: Instant) -> bool {
        let OfPlace {
            logged, omitted, ..
        } = self.0.entry(place).or_default();
        let key = text.hasher.finish();
        if let Some(known) = logged.get_mut(&key) {
            known.last = now;
            known.count += 1;
            return false;
        }
        if logged.len() >= MAX_OF_PLACE {
            *omitted += 1;
            return false;
        }
        let (text, last, count) = (text.start, now, 1);
        logged.insert(key, Warning { text, last, count });
        true
    }

    /// Forgets the warnings that are over, and returns what the log says of them.
    fn take_notes(&mut self, now: Instant) -> Vec<Note> {
        let mut notes = Vec::new();
        for (place, warnings) in &mut self.0 {
            warnings.logged.retain(|_, warning| {
                let lasts = now - warning.last < OVER_AFTER;
                if !lasts && warning.count > 1 {
                    let text = std::mem::take(&mut warning.text);
                    notes.push(Note::Over(text, warning.count));
                }
                lasts
            });
            if warnings.omitted > 0 && !warnings.announced {
                notes.push(Note::Omitting(*place));
                warnings.announced = true;
            }
            if warnings.announced && warnings.logged.len() < MAX_OF_PLACE {
                let omitted = std::mem::take(&mut warnings.omitted);
                notes.push(Note::Omitted(*place, omitted));
                warnings.announced = false;
            }
        }
        self.0.retain(|_, warnings| !warnings.logged.is_empty());
        notes
    }
}

/// The layer of a subscriber that passes each warning and error once. Clones share what was logged.
#[derive(Clone, Debug)]
pub struct LogOnce {
    warnings: Arc<Mutex<Warnings>>,
    now: fn() -> Instant,
}

impl LogOnce {
    /// A layer with this clock, under which nothing was logged.
    pub fn new(now: fn() -> Instant) -> Self {
        Self {
            warnings: Arc::default(),
            now,
        }
    }

    /// Logs which warnings are over.
    pub fn log_notes(&self) {
        let notes = self.warnings.lock().take_notes((self.now)());
        for note in notes {
            match note {
                Note::Over(warning, times) => {
                    tracing::info!(warning, times, "a warning no longer repeats");
                }
                Note::Omitting((module, line)) => tracing::info!(
                    module,
                    line,
                    "{MAX_OF_PLACE} different warnings were logged here; others are omitted until one of them is over"
                ),
                Note::Omitted((module, line), omitted) => {
                    tracing::info!(module, line, omitted, "warnings were omitted");
                }
            }
        }
    }

    /// Logs at an interval which warnings are over, for as long as the subscriber exists.
    pub(crate) fn log_notes_at_interval(&self) -> std::io::Result<()> {
        let (warnings, now) = (Arc::downgrade(&self.warnings), self.now);
        let watch = move || {
            loop {
                std::thread::park_timeout(CHECK_INTERVAL);
                let Some(warnings) = Weak::upgrade(&warnings) else {
                    return;
                };
                Self { warnings, now }.log_notes();
            }
        };
        let thread = std::thread::Builder::new().name("log-notes".to_owned());
        thread.spawn(watch).map(drop)
    }
}

impl<S: Subscriber> Layer<S> for LogOnce {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN {
            return true;
        }
        let mut text = WarningText::default();
        event.record(&mut text);
        let place = (metadata.target(), metadata.line());
        self.warnings.lock().is_new(place, text, (self.now)())
    }
}

/// The message and the fields of a warning: a hash of the whole text, and its start.
#[derive(Default)]
struct WarningText {
    start: String,
    hasher: DefaultHasher,
}

impl fmt::Write for WarningText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.hasher.write(part.as_bytes());
        let room = MAX_TEXT.saturating_sub(self.start.len());
        self.start.push_str(&part[..part.floor_char_boundary(room)]);
        Ok(())
    }
}

impl Visit for WarningText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let space = if self.start.is_empty() { "" } else { " " };
        // A value that cannot be written is written as far as it can be.
        let _ = match field.name() {
            "message" => write!(self, "{space}{value:?}"),
            name => write!(self, "{space}{name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Place = ("here", Some(1));

    fn is_new(warnings: &mut Warnings, place: Place, text: &str, now: Instant) -> bool {
        let mut written = WarningText::default();
        written.write_str(text).expect("written");
        warnings.is_new(place, written, now)
    }

    #[test]
    fn logs_lasting_warning_once_and_its_end() {
        let (start, mut warnings) = (Instant::now(), Warnings::default());
        let at = |second| start + Duration::from_secs(second);
        assert!(is_new(&mut warnings, HERE, "no space left", at(0)));
        for second in 1..1_000 {
            assert!(!is_new(&mut warnings, HERE, "no space left", at(second)));
            assert_eq!(warnings.take_notes(at(second)), []);
        }
        assert!(is_new(&mut warnings, HERE, "read-only", at(1_000)));
        // One that changes there and back is no new one each time.
        assert!(!is_new(&mut warnings, HERE, "no space left", at(1_001)));
        let there = ("there", Some(1));
        assert!(is_new(&mut warnings, there, "no space left", at(1_001)));
        assert_eq!(warnings.take_notes(at(1_600)), [], "one occurred once");
        let over = Note::Over("no space left".to_owned(), 1_001);
        assert_eq!(warnings.take_notes(at(1_601)), [over]);
        assert!(warnings.0.is_empty(), "{warnings:?}");
        assert!(is_new(&mut warnings, HERE, "no space left", at(1_601)));
    }

    #[test]
    fn logs_a_bounded_number_of_different_warnings() {
        let (start, mut warnings) = (Instant::now(), Warnings::default());
        let mut logged = 0;
        for pid in 0..1_000 {
            logged += usize::from(is_new(&mut warnings, HERE, &format!("pid={pid}"), start));
        }
        assert_eq!(logged, MAX_OF_PLACE);
        let there = ("there", None);
        assert!(is_new(&mut warnings, there, "pid=1", start), "elsewhere");
        assert_eq!(warnings.take_notes(start), [Note::Omitting(HERE)]);
        assert_eq!(warnings.take_notes(start), []);
        let later = start + OVER_AFTER;
        assert_eq!(warnings.take_notes(later), [Note::Omitted(HERE, 968)]);
        assert!(is_new(&mut warnings, HERE, "pid=7", later));
        let long = "€".repeat(MAX_TEXT);
        assert!(is_new(&mut warnings, HERE, &long, later));
        assert!(is_new(&mut warnings, HERE, &format!("{long}!"), later));
        let kept = warnings.0[&HERE].logged.values();
        assert!(kept.map(|warning| warning.text.len()).max() <= Some(MAX_TEXT));
    }
}
