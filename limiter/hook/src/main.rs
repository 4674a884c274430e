//! `aliquot-hook preload FILE`, `compat FOLDER` and `limit LIBRARY DIRECTORY GPU…`: an OCI runtime
//! runs these while it creates a container, with the container's state on standard input. On failure
//! it prints one line on stderr, and the container is not created, except after `limit`.

#![expect(clippy::print_stderr, reason = "the runtime reports it")]

use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use aliquot_hook::{compat, is_supported_kernel, limit, preload};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // The container is limited without the hooks, but for what docs/limiter.md names.
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if !is_supported_kernel(&release) {
        let release = release.trim();
        eprintln!("aliquot-hook: nothing done under Linux {release}, expected 5.8 or newer");
        return ExitCode::SUCCESS;
    }
    let state = io::stdin().lock();
    let done = match words[..] {
        ["preload", list] => preload::run(state, Path::new(list)),
        ["compat", version] => compat::run(state, Path::new(version)),
        ["limit", _library, _directory, ..] => {
            if let Err(error) = limit::run(state, &words[1..]) {
                eprintln!(
                    "aliquot-hook: the container starts without the driver's limits: {error}"
                );
            }
            Ok(())
        }
        _ => {
            eprintln!(
                "usage: aliquot-hook preload FILE | compat FOLDER | limit LIBRARY DIRECTORY GPU..."
            );
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aliquot-hook: {error}");
            ExitCode::FAILURE
        }
    }
}
