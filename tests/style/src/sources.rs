//! What a `.rs` file may hold, beyond what the compiler and clippy can check.
//!
//! Fed by: every `.rs` file but generated ones, and this crate's own (which
//! names what it forbids).
//! Must not: parse Rust; these are plain looks at lines, comments left out.

/// The longest file that needs no reason.
pub const MOST_LINES: usize = 350;
/// Says, in the first lines of a longer file, why it is one.
pub const REASON: &str = "Over 350 lines because";

/// Text that no file holds, and what to do instead.
const NEVER: &[(&str, &str)] = &[
    ("#[ignore", "assert what happens today, with a remark"),
    ("todo!(", "write it, or leave the feature out"),
    ("unimplemented!(", "write it, or leave the feature out"),
];

/// Where `unsafe` may be.
const UNSAFE: &[&str] = &["nvml/", "tests/gpusim/", "limiter/"];

/// Files besides `wait.rs` that may sleep, each with its reason.
const SLEEPERS: &[(&str, &str)] = &[
    (
        "device-plugin/src/register.rs",
        "pause before a failed registration is tried again",
    ),
    (
        "scheduler/src/bind.rs",
        "pause before an unknown outcome is asked for again",
    ),
    ("serve/src/http.rs", "deadline of the drain"),
    (
        "webhook/src/keeping.rs",
        "gathers changes that come together",
    ),
];

/// This file is not judged.
pub fn is_exempt(path: &str) -> bool {
    path.contains("/src/generated/") || path.starts_with("tests/style/")
}

/// Every rule that this file breaks.
pub fn faults(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fault = |line: usize, what: &str| found.push(format!("{path}:{line}: {what}"));

    if !text.starts_with("//!") {
        fault(
            1,
            "no //! comment that says what it holds, what feeds it, what it must not do",
        );
    }
    let lines = text.lines().count();
    let explained = text.lines().take(15).any(|line| line.contains(REASON));
    if lines > MOST_LINES && !explained {
        fault(lines, "over 350 lines without a reason in its header");
    }
    let may_sleep = path.ends_with("/wait.rs") || SLEEPERS.iter().any(|(file, _)| *file == path);
    let may_be_unsafe = UNSAFE.iter().any(|room| path.starts_with(room));
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let code = without_comment(line);
        for (word, instead) in NEVER {
            if code.contains(word) {
                fault(number, &format!("{word}: {instead}"));
            }
        }
        if code.contains("#![allow(") && !code.contains("reason = ") {
            fault(
                number,
                "#![allow(: give a reason on the same line, or allow one item",
            );
        }
        if code.contains("sleep(") && !may_sleep && !is_timer(path, code) {
            fault(
                number,
                "sleep(: wait for a condition with a deadline, in a wait.rs",
            );
        }
        if is_unsafe(code) && !may_be_unsafe {
            fault(number, "unsafe: only in nvml, limiter and tests/gpusim");
        }
    }
    found
}

/// The line up to `//`; a `//` inside a text, such as a URL, cuts it short.
fn without_comment(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

/// In a product: an arm of `select!`, so that something else ends the wait too.
fn is_timer(path: &str, code: &str) -> bool {
    !path.starts_with("tests/") && code.trim_start().starts_with("() = ")
}

fn is_unsafe(code: &str) -> bool {
    [
        "unsafe {",
        "unsafe fn",
        "unsafe impl",
        "unsafe extern",
        "unsafe trait",
        "unsafe(",
    ]
    .iter()
    .any(|start| code.contains(start))
}
