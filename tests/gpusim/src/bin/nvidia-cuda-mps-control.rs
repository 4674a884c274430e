//! The fake of NVIDIA's `nvidia-cuda-mps-control`; all of it is in `aliquot_gpusim::mps`.

use std::process::ExitCode;

fn main() -> ExitCode {
    aliquot_gpusim::mps::control::main()
}
