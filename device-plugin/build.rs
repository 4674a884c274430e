//! Generates the code of the kubelet's API from `proto/`, without a system protoc.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new("proto");
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in folder.read_dir()? {
        let descriptors = protox::compile([entry?.path()], [folder])?;
        tonic_prost_build::configure().compile_fds(descriptors)?;
    }
    Ok(())
}
