//! `aliquot-hook-limit CGROUP LIBRARY DIRECTORY GPU…`, which `aliquot-hook limit` runs: has the driver
//! limit a cgroup. It opens the driver's library, which a static program cannot.

#![expect(clippy::print_stderr, reason = "aliquot-hook reads it")]

use std::path::Path;
use std::process::ExitCode;

use aliquot_hook::limit::limit;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [cgroup, library, directory, ref gpus @ ..] = words[..] else {
        eprintln!("usage: aliquot-hook-limit CGROUP LIBRARY DIRECTORY GPU...");
        return ExitCode::from(2);
    };
    let limited = limit(
        Path::new(cgroup),
        Path::new(library),
        Path::new(directory),
        gpus,
    );
    match limited {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
