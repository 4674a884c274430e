//! Shows a text again and again until the user ends it: in place on a terminal, one after the other
//! elsewhere.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal as _, Read as _, Write as _};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

/// Enters the terminal's other screen and hides the cursor, and the reverse.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Moves to the first cell; erases the rest of a line, and of the screen.
const HOME: &str = "\x1b[H";
const END_LINE: &str = "\x1b[K\n";
const END_SCREEN: &str = "\x1b[J";

/// Prints what `next` returns every so often, until q, Ctrl-C, SIGTERM, or until nobody reads the output.
pub(crate) async fn show(
    title: &str,
    every: Duration,
    mut next: impl AsyncFnMut() -> String,
) -> io::Result<()> {
    let screen = Screen::enter()?;
    let input = screen.as_ref().and_then(|screen| screen.input.as_ref());
    let mut keys = input.map(|_| keys());
    let mut terminated = signal(SignalKind::terminate())?;
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let frames = async {
        loop {
            ticks.tick().await;
            let text = next().await;
            let now = Timestamp::now().strftime("%H:%M:%S UTC");
            let written = match &screen {
                Some(_) => {
                    let every = every.as_secs();
                    let first = format!("{title} · {now} · every {every} s · q ends");
                    let size = tcgetwinsize(io::stdout())?;
                    let size = (size.ws_row.into(), size.ws_col.into());
                    print(&frame(&first, &text, size))
                }
                None => print(&format!("{now}\n{text}\n")),
            };
            match written {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                written => written?,
            }
        }
    };
    let pressed = async {
        match &mut keys {
            Some(keys) => drop(keys.recv().await),
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = frames => ended,
        () = pressed => Ok(()),
        interrupted = ctrl_c() => interrupted,
        _ = terminated.recv() => Ok(()),
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Sends when the user presses q, or the terminal is gone. The thread waits for keys until the program ends.
fn keys() -> mpsc::Receiver<()> {
    let (sender, pressed) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut keys = io::stdin().lock().bytes();
        keys.any(|key| !matches!(key, Ok(other) if other != b'q'));
        let _ = sender.try_send(());
    });
    pressed
}

/// The terminal, until it is dropped.
struct Screen {
    /// How standard input was, if it is a terminal too.
    input: Option<Termios>,
}

impl Screen {
    /// `None` if standard output is no terminal.
    fn enter() -> io::Result<Option<Self>> {
        if !io::stdout().is_terminal() {
            return Ok(None);
        }
        let input = io::stdin().is_terminal().then(|| tcgetattr(io::stdin()));
        let input = input.transpose()?;
        if let Some(before) = &input {
            // Keys arrive at once and are not shown; Ctrl-C stays a signal.
            let mut raw = before.clone();
            raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        }
        let screen = Self { input };
        print(ENTER)?;
        Ok(Some(screen))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is nobody to report a failure to.
        let _ = print(LEAVE);
        if let Some(before) = &self.input {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

/// What a terminal of this many lines and columns shows: the first line, then as much of the text as fits.
fn frame(first: &str, text: &str, (rows, columns): (usize, usize)) -> String {
    let lines: Vec<&str> = text.lines().collect();
    // Below the first line, and above the last one, which stays empty.
    let room = rows.saturating_sub(2);
    let mut shown = format!("{HOME}\x1b[1m{}\x1b[0m{END_LINE}", cut(first, columns));
    let count = if lines.len() <= room {
        lines.len()
    } else {
        room.saturating_sub(1)
    };
    for line in &lines[..count] {
        let _ = write!(shown, "{}{END_LINE}", cut(line, columns));
    }
    if count < lines.len() {
        let more = format!("… and {} more lines", lines.len() - count);
        let _ = write!(shown, "{}{END_LINE}", cut(&more, columns));
    }
    shown + END_SCREEN
}

/// The beginning of a line.
fn cut(line: &str, columns: usize) -> String {
    line.chars().take(columns).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_what_fits_on_the_terminal() {
        let check = |text: &str, size: (usize, usize), expected: &[&str]| {
            let shown = frame("top", text, size);
            let shown = shown.strip_prefix(HOME).expect("from the first cell");
            let shown = shown.strip_suffix(END_SCREEN).expect("the rest is erased");
            let lines: Vec<&str> = shown.split(END_LINE).collect();
            assert_eq!(lines[0], "\x1b[1mtop\x1b[0m");
            assert_eq!(lines[1..lines.len() - 1], *expected, "{size:?}");
        };
        check("a\nb\n", (24, 80), &["a", "b"]);
        check("a\nb\nc\n", (5, 80), &["a", "b", "c"]);
        check("a\nb\nc\nd\n", (5, 80), &["a", "b", "… and 2 more lines"]);
        check("größer\n", (24, 3), &["grö"]);
    }
}
