//! Where NVIDIA's MPS programs are: they come with the driver, so they are on this process's `PATH`
//! where NVIDIA's runtime brings the driver, or below a driver root.
//!
//! A program of a root runs with the C library of this image: of the root's libraries it finds the
//! driver's own only, as two C libraries in one process end it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use aliquot_nvml::root;
use parking_lot::Mutex;
use thiserror::Error;

use crate::files::{self, FileError, failed};

/// Where distributions install programs, below a root.
const FOLDERS: [&str; 6] = [
    "usr/bin",
    "usr/local/bin",
    "bin",
    "usr/sbin",
    "usr/local/sbin",
    "sbin",
];
/// How the names of the driver's libraries begin.
const LIBRARIES: [&str; 2] = ["libcuda", "libnvidia-"];
const CUDA: &str = "libcuda.so.1";

#[derive(Clone, Debug)]
pub struct ProgramSearch {
    /// Its path, or its name, which is searched.
    pub program: PathBuf,
    pub path: Vec<PathBuf>,
    /// The driver roots, searched after `path`.
    pub roots: Vec<PathBuf>,
    /// Where links to the libraries of a root are.
    pub libraries: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlProgram {
    pub file: PathBuf,
    /// The driver root below which it was found.
    pub root: Option<PathBuf>,
}

#[derive(Debug, Error)]
pub enum ProgramError {
    #[error(
        "there is no {} at {}; it comes with NVIDIA's driver: expected devicePlugin.nvidiaDriverRoot to name the driver's root on the host, or --mps-control the program",
        program.display(),
        places.join(", nor at ")
    )]
    Missing {
        program: PathBuf,
        places: Vec<String>,
    },
    #[error(transparent)]
    Links(#[from] FileError),
}

impl ProgramSearch {
    pub fn find(&self) -> Result<ControlProgram, ProgramError> {
        // A path is not searched.
        let is_path = self.program.components().count() > 1;
        let roots: &[PathBuf] = if is_path { &[] } else { &self.roots };
        let files = if is_path {
            vec![self.program.clone()]
        } else {
            let files = self.path.iter().map(|folder| folder.join(&self.program));
            files.collect()
        };
        if let Some(file) = files.iter().find(|file| file.is_file()) {
            let file = file.clone();
            return Ok(ControlProgram { file, root: None });
        }
        for root in roots {
            let paths = FOLDERS.map(|folder| Path::new(folder).join(&self.program));
            let found = paths.iter().find_map(|path| root::resolve(root, path).ok());
            if let Some(file) = found {
                return Ok(ControlProgram {
                    file: root.join(file),
                    root: Some(root.clone()),
                });
            }
        }
        let files = files.iter().map(|file| file.display().to_string());
        let below = |root: &PathBuf| format!("{} of {}", FOLDERS.join(", "), root.display());
        Err(ProgramError::Missing {
            program: self.program.clone(),
            places: files.chain(roots.iter().map(below)).collect(),
        })
    }

    /// The variables with which the program finds the server, which is beside it, and the driver's
    /// libraries.
    pub fn environment(&self, program: &ControlProgram) -> Vec<(&'static str, OsString)> {
        let mut variables = Vec::new();
        let own = program.file.parent().map(Path::to_owned);
        if let Ok(path) = std::env::join_paths(own.iter().chain(&self.path)) {
            variables.push(("PATH", path));
        }
        if program.root.is_some() {
            let libraries = self.libraries.clone().into_os_string();
            variables.push(("LD_LIBRARY_PATH", libraries));
        }
        variables
    }

    /// Links the libraries of the root below which the program was found: to be called before a
    /// daemon starts, as the driver may have been replaced.
    pub fn link_libraries(&self, program: &ControlProgram) -> Result<(), ProgramError> {
        /// Each device's daemon is started by a thread of its own.
        static LINKING: Mutex<()> = Mutex::new(());
        let Some(root) = &program.root else {
            return Ok(());
        };
        let _linking = LINKING.lock();
        let current = libraries(root)?;
        files::directory(&self.libraries, 0o755)?;
        for name in files::names(&self.libraries)? {
            if !current.iter().any(|(other, _)| *other == name) {
                files::remove(&self.libraries.join(name))?;
            }
        }
        for (name, file) in current {
            let link = self.libraries.join(name);
            if fs::read_link(&link).is_ok_and(|target| target == file) {
                continue;
            }
            files::remove(&link)?;
            symlink(file, &link).map_err(failed("link", &link))?;
        }
        Ok(())
    }
}

/// The driver's libraries in the folder of the root that has [`CUDA`]: names and files.
fn libraries(root: &Path) -> Result<Vec<(String, PathBuf)>, FileError> {
    let has = |folder: &&&str| root::resolve(root, &Path::new(**folder).join(CUDA)).is_ok();
    let Some(folder) = root::FOLDERS.iter().find(has) else {
        return Ok(Vec::new());
    };
    let names = files::names(&root.join(folder))?;
    let ours = |name: &String| {
        let known = LIBRARIES.iter().any(|start| name.starts_with(start));
        known && name.contains(".so")
    };
    let found = names.into_iter().filter(ours).filter_map(|name| {
        let file = root::resolve(root, &Path::new(folder).join(&name)).ok()?;
        Some((name, root.join(file)))
    });
    Ok(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str = "nvidia-cuda-mps-control";
    const LIB: &str = "usr/lib/x86_64-linux-gnu";

    fn put(place: &Path, file: &str) {
        let file = place.join(file);
        fs::create_dir_all(file.parent().expect("in a folder")).expect("made");
        fs::write(file, "").expect("written");
    }

    fn search(place: &Path, program: &str) -> ProgramSearch {
        ProgramSearch {
            program: program.into(),
            path: vec![place.join("own/bin")],
            roots: ["one", "two"].map(|root| place.join(root)).to_vec(),
            libraries: place.join("state/driver"),
        }
    }

    #[test]
    fn finds_control_program_on_path_then_below_roots() {
        let place = tempfile::tempdir().expect("tempdir");
        let place = place.path();
        let check = |program: &str, expected: Option<(&str, Option<&str>)>| {
            let found = search(place, program).find().ok();
            let expected = expected.map(|(file, root)| ControlProgram {
                file: place.join(file),
                root: root.map(|root| place.join(root)),
            });
            assert_eq!(found, expected, "{program}");
        };
        check(PROGRAM, None);
        let missing = search(place, PROGRAM)
            .find()
            .expect_err("nowhere")
            .to_string();
        for part in [
            "/own/bin/nvidia-cuda-mps-control, nor at ",
            "devicePlugin.nvidiaDriverRoot",
        ] {
            assert!(missing.contains(part), "{missing}");
        }
        // A link starts at the root, as in a container with that root.
        let target = "two/opt/nvidia-cuda-mps-control";
        put(place, target);
        fs::create_dir_all(place.join("two/usr/bin")).expect("made");
        let link = place.join("two/usr/bin").join(PROGRAM);
        symlink("/opt/nvidia-cuda-mps-control", link).expect("linked");
        check(PROGRAM, Some((target, Some("two"))));
        let below = "one/usr/local/bin/nvidia-cuda-mps-control";
        put(place, below);
        check(PROGRAM, Some((below, Some("one"))));
        put(place, "own/bin/nvidia-cuda-mps-control");
        check(PROGRAM, Some(("own/bin/nvidia-cuda-mps-control", None)));
        let own = place.join(below).display().to_string();
        check(&own, Some((below, None)));
        check("/nonexistent/nvidia-cuda-mps-control", None);
    }

    #[test]
    fn links_only_driver_libraries_of_current_driver() {
        let place = tempfile::tempdir().expect("tempdir");
        let place = place.path();
        let search = search(place, PROGRAM);
        let lib = place.join("one").join(LIB);
        let install = |version: &str| {
            let _none_before = fs::remove_dir_all(&lib);
            for name in ["libcuda.so", "libnvidia-gpucomp.so", "libc.so"] {
                put(place, &format!("one/{LIB}/{name}.{version}"));
            }
            put(place, &format!("one/{LIB}/libnvidia-egl.conf"));
            symlink(format!("libcuda.so.{version}"), lib.join(CUDA)).expect("linked");
        };
        let linked = || {
            let names = files::names(&search.libraries).expect("listed");
            let target = |name: String| {
                let target = fs::read_link(search.libraries.join(&name)).expect("a link");
                let file = target.strip_prefix(&lib).expect("in the root").to_owned();
                format!("{name} {}", file.display())
            };
            names.into_iter().map(target).collect::<Vec<_>>()
        };
        put(place, "one/usr/bin/nvidia-cuda-mps-control");
        let program = search.find().expect("found");
        for version in ["580.82", "590.10"] {
            install(version);
            for _ in 0..2 {
                search.link_libraries(&program).expect("linked");
                let expected = [
                    format!("libcuda.so.1 libcuda.so.{version}"),
                    format!("libcuda.so.{version} libcuda.so.{version}"),
                    format!("libnvidia-gpucomp.so.{version} libnvidia-gpucomp.so.{version}"),
                ];
                assert_eq!(linked(), expected);
            }
        }
        let own = ControlProgram {
            root: None,
            ..program
        };
        files::remove(&search.libraries).expect("removed");
        search.link_libraries(&own).expect("nothing to link");
        assert!(!search.libraries.exists());
    }
}
