//! For tests: where cargo put the shared libraries, links to them under the drivers' file names, and
//! programs in the place of NVIDIA's toolkit.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The name under which NVML clients look for their library.
pub const LIBRARY_NAME: &str = "libnvidia-ml.so.1";

/// The name under which CUDA clients look for the driver.
pub const CUDA_LIBRARY_NAME: &str = "libcuda.so.1";

const BUILT_NAME: &str = "libaliquot_gpusim.so";
const CUDA_BUILT_NAME: &str = "libaliquot_gpusim_cuda.so";

/// The built NVML library. Cargo writes it to `deps/` whenever this crate is compiled, also as
/// a dependency of tests, and copies it one folder up only when this crate itself is built;
/// so the one in `deps/` is never older.
pub fn library_path() -> io::Result<PathBuf> {
    built(BUILT_NAME, "aliquot-gpusim")
}

/// The built CUDA driver, of the package aliquot-gpusim-cuda.
pub fn cuda_library_path() -> io::Result<PathBuf> {
    built(CUDA_BUILT_NAME, "aliquot-gpusim-cuda")
}

fn built(name: &str, package: &str) -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folders: Vec<PathBuf> = program
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|folder| [folder.join("deps"), folder.to_owned()])
        .collect();
    let found = folders
        .iter()
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    found.ok_or_else(|| {
        let error = format!("no {name} in {folders:?}; build it with: cargo build -p {package}");
        io::Error::new(io::ErrorKind::NotFound, error)
    })
}

/// Links the NVML library into `folder` under its real name and returns the link; an older link
/// of that name is replaced.
pub fn link_into(folder: &Path) -> io::Result<PathBuf> {
    link(&library_path()?, folder, LIBRARY_NAME)
}

/// Links the CUDA driver into `folder` under its real name and returns the link; an older link
/// of that name is replaced.
pub fn link_cuda_into(folder: &Path) -> io::Result<PathBuf> {
    link(&cuda_library_path()?, folder, CUDA_LIBRARY_NAME)
}

/// Writes programs with the names of NVIDIA's toolkit into `folder`: its `nvidia-ctk` prints the CDI
/// spec that is in the file `spec` then, whatever it is asked for.
pub fn write_toolkit(folder: &Path, spec: &Path) -> io::Result<()> {
    let generator = format!("#!/bin/sh\nexec cat '{}'\n", spec.display());
    for (name, text) in [
        ("nvidia-ctk", generator.as_str()),
        ("nvidia-cdi-hook", "#!/bin/sh\n"),
    ] {
        let program = folder.join(name);
        std::fs::write(&program, text)?;
        std::fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn link(target: &Path, folder: &Path, name: &str) -> io::Result<PathBuf> {
    let link = folder.join(name);
    match std::fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => std::os::unix::fs::symlink(target, &link)?,
    }
    Ok(link)
}
