//! What a `.rs` file may contain, beyond what the compiler and clippy can check.
//! Lines are compared as text, without their comments.

/// Where `unsafe` may be.
const UNSAFE: &[&str] = &["nvml/", "tests/gpusim/", "limiter/"];

/// Files besides `wait.rs` that may sleep, each with its reason.
const SLEEPERS: &[(&str, &str)] = &[
    (
        "device-plugin/src/kubelet/register.rs",
        "pause before a failed registration is tried again",
    ),
    (
        "limiter/src/pace.rs",
        "a launch waits for its share of time",
    ),
    (
        "scheduler/src/bind.rs",
        "pause before an unknown outcome is asked for again",
    ),
    (
        "serve/src/access_control.rs",
        "a client without an accepted token waits",
    ),
    ("serve/src/http.rs", "deadline of the drain"),
    (
        "tests/e2e/tests/control_plane/harmless.rs",
        "until certificates have ended",
    ),
    (
        "webhook/src/reconciler.rs",
        "gathers changes that come together",
    ),
];

/// This crate, which names what it forbids.
pub fn is_exempt(path: &str) -> bool {
    path.starts_with("tests/style/")
}

/// Every rule that this file breaks.
pub fn errors(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut error = |line: usize, what: &str| found.push(format!("{path}:{line}: {what}"));
    let may_sleep = path.ends_with("/wait.rs") || SLEEPERS.iter().any(|(file, _)| *file == path);
    let may_be_unsafe = UNSAFE.iter().any(|folder| path.starts_with(folder));
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let code = without_comment(line);
        if code.contains("#[ignore") {
            error(number, "#[ignore: assert what happens today, with a remark");
        }
        if code.contains("sleep(") && !may_sleep && !is_timer(path, code) {
            error(
                number,
                "sleep(: wait for a condition with a deadline, in a wait.rs",
            );
        }
        if is_unsafe(code) && !may_be_unsafe {
            error(number, "unsafe: only in nvml, limiter and tests/gpusim");
        }
    }
    found
}

/// The line up to `//`, which may also be part of a URL in a string.
fn without_comment(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

/// In product code: an arm of `select!`, so that another arm can end the wait too.
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
