//! The server that the fake control daemon starts; all of it is in `aliquot_gpusim::mps`.

use std::process::ExitCode;

fn main() -> ExitCode {
    aliquot_gpusim::mps::server::main()
}
