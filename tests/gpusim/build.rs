//! Gives the shared library the soname under which every NVML client looks for it, and declares the
//! names of a driver that no file of `src/exports` has.

use std::collections::HashSet;
use std::path::PathBuf;
use std::{env, fs, io};

const NAMES: &str = "../../limiter/names/nvml-13.5.txt";
const SIMULATED: &str = "src/exports";

fn main() -> io::Result<()> {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    for file in ["build.rs", NAMES, SIMULATED] {
        println!("cargo::rerun-if-changed={file}");
    }
    let mut sources = String::new();
    for file in fs::read_dir(SIMULATED)? {
        sources += &fs::read_to_string(file?.path())?;
    }
    let is_between = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let simulated: HashSet<&str> = sources.split(is_between).collect();
    let names = fs::read_to_string(NAMES)?;
    let names = names.lines().filter(|line| line.starts_with("nvml"));
    let others: Vec<&str> = names.filter(|name| !simulated.contains(name)).collect();
    let folder: PathBuf = env::var_os("OUT_DIR").unwrap_or_default().into();
    let declared = format!("unsimulated! {{\n{}\n}}\n", others.join("\n"));
    fs::write(folder.join("unsimulated.rs"), declared)
}
